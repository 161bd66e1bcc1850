# cmake --install: headers, libraries, the program, and find_package(Cleave) with Cleave::Core (no libtorch) and
# Cleave::Cleave (the whole library).
include(CMakePackageConfigHelpers)

set(cleave_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Cleave)
set(cleave_libraries cleave_core)
set_target_properties(cleave_core PROPERTIES EXPORT_NAME Core)
if(CLEAVE_TORCH)
  list(APPEND cleave_libraries cleave_torch)
  set_target_properties(cleave_torch PROPERTIES EXPORT_NAME Cleave)
endif()

# The program and the libraries find each other after the prefix is moved; libtorch is found where the build found it.
set_target_properties(${cleave_libraries} PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  INSTALL_RPATH $ORIGIN INSTALL_RPATH_USE_LINK_PATH ON)
set_target_properties(cleave PROPERTIES INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
foreach(library IN LISTS cleave_libraries)
  target_compile_features(${library} PUBLIC cxx_std_20)
endforeach()

install(TARGETS ${cleave_libraries} EXPORT CleaveTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_target_properties(cleave_sentencepiece PROPERTIES INSTALL_RPATH $ORIGIN)
install(TARGETS cleave_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(CLEAVE_HAS_CUDA)
  set_target_properties(cleave_cuda PROPERTIES INSTALL_RPATH $ORIGIN INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS cleave_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
foreach(flavour IN LISTS CLEAVE_MPI_FLAVOURS)
  install(TARGETS cleave_mpi_${flavour} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
install(TARGETS cleave RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# The public headers (docs/library.md lists them) and those that they include; all others are private.
file(GLOB todo RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/cleave/compat/*.h)
list(APPEND todo cleave/cleave.h cleave/base/version.h)
set(installed)
while(todo)
  list(POP_FRONT todo header)
  if(NOT header IN_LIST installed)
    list(APPEND installed ${header})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include \"cleave/")
    list(TRANSFORM lines REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND todo ${lines})
  endif()
endwhile()
foreach(header IN LISTS installed)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
install(EXPORT CleaveTargets NAMESPACE Cleave:: DESTINATION ${cleave_package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/CleaveConfig.cmake.in
  ${PROJECT_BINARY_DIR}/CleaveConfig.cmake INSTALL_DESTINATION ${cleave_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CleaveConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CleaveConfig.cmake ${PROJECT_BINARY_DIR}/CleaveConfigVersion.cmake
        ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${cleave_package_dir})
