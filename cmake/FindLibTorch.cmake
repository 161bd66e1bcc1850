# Finds libtorch without a CUDA toolkit: find_package(Torch) of a CUDA wheel requires one, but a CPU build needs only torch_cpu
# and c10.
#
# Looks in CLEAVE_LIBTORCH (cache or environment), a folder that holds include/ and lib/.

# Not the policies of the project that calls find_package(Cleave): for one that requires less than CMake 3.21, the next line would
# remove the variable that CleaveConfig.cmake sets, and the first configuration would find nothing.
cmake_policy(SET CMP0126 NEW)
set(CLEAVE_LIBTORCH "$ENV{CLEAVE_LIBTORCH}" CACHE PATH "Folder of libtorch: include/ and lib/")

find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ${CLEAVE_LIBTORCH}/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${CLEAVE_LIBTORCH}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${CLEAVE_LIBTORCH}/lib NO_DEFAULT_PATH)
# at::parallel_for is a template in libtorch's headers. Without -fopenmp it compiles to a loop on one thread, without a warning.
# The OpenMP library must be the one that libtorch loads: only that one has the number of threads of at::set_num_threads().
# Clang's OpenMP is another library.
find_library(LibTorch_OPENMP_LIBRARY NAMES libgomp.so.1 gomp HINTS ${CLEAVE_LIBTORCH}/lib)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_OPENMP_LIBRARY
  REASON_FAILURE_MESSAGE "set CLEAVE_LIBTORCH to a folder with libtorch's include/ and lib/ (of Python's torch: site-packages/torch), or use ./run build, which fetches one")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fopenmp>"
    INTERFACE_LINK_LIBRARIES "${LibTorch_CPU_LIBRARY};${LibTorch_C10_LIBRARY};${LibTorch_OPENMP_LIBRARY}")
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_OPENMP_LIBRARY)
