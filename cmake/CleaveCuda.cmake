# libcleave_cuda: GPU support. Built if nvcc exists and libtorch has its CUDA libraries and the NCCL headers of the same build
# (c10d's types depend on their version, so another NCCL's headers do not work). libcleave loads it when needed.
set(CLEAVE_CUDA AUTO CACHE STRING "Build GPU support: AUTO (if everything needed is found), ON, OFF")
set_property(CACHE CLEAVE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CLEAVE_HAS_CUDA OFF)
if(NOT CLEAVE_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  get_filename_component(cleave_libtorch_parent ${CLEAVE_LIBTORCH} DIRECTORY)
  find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${CLEAVE_LIBTORCH}/lib NO_DEFAULT_PATH)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${CLEAVE_LIBTORCH}/lib NO_DEFAULT_PATH)
  find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h HINTS ${cleave_libtorch_parent}/nvidia/nccl/include NO_DEFAULT_PATH)
  mark_as_advanced(LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY LibTorch_NCCL_INCLUDE_DIR)
  set(cleave_missing "")
  if(NOT CUDAToolkit_FOUND)
    list(APPEND cleave_missing "nvcc")
  endif()
  foreach(found LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY LibTorch_NCCL_INCLUDE_DIR)
    if(NOT ${found})
      list(APPEND cleave_missing ${found})
    endif()
  endforeach()
  if(NOT cleave_missing)
    set(CLEAVE_HAS_CUDA ON)
  elseif(CLEAVE_CUDA STREQUAL "AUTO")
    message(STATUS "No CUDA: not found: ${cleave_missing}")
  else()
    message(FATAL_ERROR "CLEAVE_CUDA=${CLEAVE_CUDA}, but not found: ${cleave_missing}")
  endif()
endif()

if(CLEAVE_HAS_CUDA)
  message(STATUS "CUDA: ${CUDAToolkit_VERSION}, ${LibTorch_CUDA_LIBRARY}")
  # The kernels. nvcc runs as a command, not as a CMake language, since CMake would first link a program of its own, which needs
  # more of the toolkit. Warnings and spilled registers are errors; kernels.log has the registers (tools/cuda_registers.py), kernels.ptx
  # the reads of parameters (tools/cuda_parameters.py).
  # Random numbers have the CPU's bits, so a*b+c is not contracted.
  set(cleave_kernels ${PROJECT_SOURCE_DIR}/cleave/kernels/cuda/kernels.cu)
  set(cleave_cuda_folder ${PROJECT_BINARY_DIR}/cuda)
  set(cleave_kernels_object ${cleave_cuda_folder}/kernels.o)
  file(MAKE_DIRECTORY ${cleave_cuda_folder})
  set(cleave_kernels_flags -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -O3 -I${PROJECT_SOURCE_DIR} --expt-relaxed-constexpr
    --fmad=false)
  add_custom_command(OUTPUT ${cleave_kernels_object} BYPRODUCTS ${cleave_cuda_folder}/kernels.log ${cleave_cuda_folder}/kernels.ptx
    COMMAND ${CMAKE_COMMAND} -E rm -f ${cleave_kernels_object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${cleave_kernels_flags}
      -Werror all-warnings -Xptxas -v,-warn-spills,-Werror
      -Xcompiler -fPIC,-Wall,-Wextra -gencode arch=compute_80,code=[sm_80,compute_80]
      -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100,code=sm_100
      -MD -MF ${cleave_kernels_object}.d -c ${cleave_kernels} -o ${cleave_kernels_object}
      > ${cleave_cuda_folder}/kernels.log 2>&1 || cat ${cleave_cuda_folder}/kernels.log && test -e ${cleave_kernels_object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${cleave_kernels_flags} -arch=compute_90a -ptx ${cleave_kernels}
      -o ${cleave_cuda_folder}/kernels.ptx
    DEPENDS ${cleave_kernels} DEPFILE ${cleave_kernels_object}.d COMMENT "Compiling CUDA kernels" VERBATIM)
  add_library(cleave_cuda MODULE ${PROJECT_SOURCE_DIR}/cleave/mesh/cuda_plugin.cc
    ${PROJECT_SOURCE_DIR}/cleave/kernels/cuda/kernels_plugin.cc ${cleave_kernels_object})
  cleave_compile_options(cleave_cuda)
  target_compile_definitions(cleave_cuda PRIVATE USE_C10D_NCCL)
  target_include_directories(cleave_cuda SYSTEM PRIVATE ${LibTorch_NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(cleave_cuda PRIVATE cleave_torch ${LibTorch_CUDA_LIBRARY} ${LibTorch_C10_CUDA_LIBRARY}
    CUDA::cudart)
  target_link_options(cleave_cuda PRIVATE -Wl,--no-undefined)
endif()
