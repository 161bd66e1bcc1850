# libcleave_mpi: the engine between hosts. Built if MPI is found (Debian: libopenmpi-dev); comm/hosts/host_network.cc loads
# it when mpirun or srun started the ranks.
set(CLEAVE_MPI AUTO CACHE STRING "Build MPI support: AUTO (if MPI is found), ON, OFF")
set_property(CACHE CLEAVE_MPI PROPERTY STRINGS AUTO ON OFF)
set(CLEAVE_HAS_MPI OFF)
# The sanitizers report what MPI itself does.
if(NOT CLEAVE_MPI STREQUAL "OFF" AND NOT CLEAVE_SANITIZE)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(CLEAVE_HAS_MPI ON)
  elseif(CLEAVE_MPI STREQUAL "ON")
    message(FATAL_ERROR "CLEAVE_MPI=ON, but no MPI was found; install libopenmpi-dev or libmpich-dev")
  endif()
endif()

if(CLEAVE_HAS_MPI)
  message(STATUS "MPI: ${MPI_CXX_LIBRARIES}")
  add_library(cleave_mpi MODULE ${PROJECT_SOURCE_DIR}/cleave/comm/hosts/mpi_plugin.cc)
  cleave_compile_options(cleave_mpi)
  # Without MPI's own C++ classes, which are deprecated.
  target_compile_definitions(cleave_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(cleave_mpi PRIVATE cleave_core MPI::MPI_CXX)
endif()
