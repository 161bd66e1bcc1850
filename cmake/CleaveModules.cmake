# One rule for every module: its sources are cleave/<module>/**.cc, its tests the *_test.cc among them.

set(CLEAVE_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Wold-style-cast
    -Woverloaded-virtual -Wimplicit-fallthrough -Wformat=2)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND CLEAVE_WARNINGS -Wno-restrict)  # GCC 12 at -O3 warns about every string = "literal" (its bug 105651)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND CLEAVE_WARNINGS -Wno-dangling-reference)  # text::Json is a handle: what it refers to outlives it
  endif()
endif()
if(CLEAVE_WARNINGS_AS_ERRORS)
  list(APPEND CLEAVE_WARNINGS -Werror)
endif()

# Initial weights and dropout masks are bit-identical between builds: no contraction of a*b+c, no fast math.
set(CLEAVE_ARITHMETIC -ffp-contract=off -fno-math-errno)

function(cleave_compile_options target)
  target_compile_options(${target} PRIVATE ${CLEAVE_WARNINGS} ${CLEAVE_ARITHMETIC})
  if(CLEAVE_SANITIZE)
    # End the process after a sanitizer report: a fuzzer or rank would continue after it.
    target_compile_options(${target} PRIVATE -fsanitize=${CLEAVE_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
    if(CLEAVE_TORCH)
      target_compile_options(${target} PRIVATE -fno-sanitize=vptr)  # the types inside libtorch are hidden
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${CLEAVE_SANITIZE})
  endif()
endfunction()

# Adds the sources to `target`. With CLEAVE_UNITY, sources of one folder that need libtorch are compiled together, at most eight
# at a time: two thirds of their time goes into headers. The files that include the others have relative paths, so that ccache
# finds their objects from every clone. Sources of Highway include themselves, so each source of their folder is compiled alone, and
# so is a test that is written like a user's program.
function(cleave_sources target needs_torch)
  if(NOT CLEAVE_UNITY OR NOT needs_torch)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  set(groups)
  foreach(source IN LISTS ARGN)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
    get_filename_component(folder ${path} DIRECTORY)
    if(folder STREQUAL "cleave/kernels/cpu" OR path STREQUAL "cleave/compat/pages_test.cc")
      target_sources(${target} PRIVATE ${source})
      continue()
    endif()
    string(MAKE_C_IDENTIFIER ${folder} name)
    math(EXPR index "${count_${name}} + 0")
    math(EXPR count_${name} "${index} + 1")
    math(EXPR part "${index} / 8")
    list(APPEND groups ${name}_${part})
    string(APPEND text_${name}_${part} "#include \"${path}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    set(file ${PROJECT_BINARY_DIR}/unity/${target}/${group}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text_${group}}")
    target_sources(${target} PRIVATE ${file})
  endforeach()
endfunction()

# Adds the sources of the named modules to `target`; a folder that does not exist adds nothing.
function(cleave_modules target)
  string(COMPARE EQUAL ${target} "cleave_torch" needs_torch)
  foreach(module IN LISTS ARGN)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cleave/${module}/*.cc)
    list(FILTER sources EXCLUDE REGEX "_(test|plugin)\\.cc$")
    if(CLEAVE_MUTANTS)
      cleave_use_mutants(sources)
    endif()
    cleave_sources(${target} ${needs_torch} ${sources})
  endforeach()
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  cleave_compile_options(${target})
endfunction()

# Makes the text of `file` the value of the std::string_view `variable`, which a header next to it declares.
function(cleave_embed target file variable)
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${PROJECT_SOURCE_DIR}/${file} text)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/embedded/${name}.cc @ONLY CONTENT [[
#include "@folder@/@name@_template.h"
const std::string_view cleave::@variable@ = R"embedded(@text@)embedded";
]])
  target_sources(${target} PRIVATE ${PROJECT_BINARY_DIR}/embedded/${name}.cc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
endfunction()

# Each TEST of a test binary becomes a ctest with one label. Suites or instances that begin with Real need the real models
# and texts of CLEAVE_DATA: their label is real. Suites that end in Full, or whose instance is called Full, run only in
# ./run test --full. Suites that match the pattern `grouped` run in three processes: they have hundreds of cases that take
# less time than the start of libtorch.
#   cleave_discover_tests(target prefix label grouped PROPERTIES...)
function(cleave_discover_tests target prefix label grouped)
  set(special "Full/*:*Full.*:*Real*.*")
  gtest_discover_tests(${target} TEST_PREFIX "${prefix}." DISCOVERY_TIMEOUT 60 TEST_FILTER "-${special}:${grouped}"
                       PROPERTIES LABELS ${label} ${ARGN})
  gtest_discover_tests(${target} TEST_PREFIX "${prefix}." DISCOVERY_TIMEOUT 60 TEST_LIST ${target}_real
                       TEST_FILTER "*Real*.*:-Full/*:*Full.*" PROPERTIES LABELS real ${ARGN})
  gtest_discover_tests(${target} TEST_PREFIX "${prefix}." DISCOVERY_TIMEOUT 60 TEST_LIST ${target}_full
                       TEST_FILTER "Full/*:*Full.*" PROPERTIES ${ARGN} TIMEOUT 1200 LABELS full)
  if(grouped)
    foreach(shard RANGE 0 2)
      set(name ${prefix}.Grouped.${shard})
      add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E env GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=${shard}
               $<TARGET_FILE:${target}> --gtest_brief=1 --gtest_filter=${grouped}:-${special})
      set_tests_properties(${name} PROPERTIES TIMEOUT 1200 LABELS ${label} ${ARGN})
    endforeach()
  endif()
endfunction()

# One test binary per module, from the *_test.cc among its sources.
function(cleave_module_test module library)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cleave/${module}/*_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${module}_test)
  string(COMPARE EQUAL ${library} "cleave_torch" needs_torch)
  cleave_sources(${module}_test ${needs_torch} ${sources})
  target_link_libraries(${module}_test PRIVATE ${library} test_support GTest::gmock GTest::gtest_main)
  cleave_compile_options(${module}_test)
  add_dependencies(${module}_test cleave_sentencepiece)
  set_target_properties(${module}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(library STREQUAL "cleave_torch")
    target_link_libraries(${module}_test PRIVATE torch_test_support)
    target_precompile_headers(${module}_test REUSE_FROM torch_test_pch)
  endif()
  set(grouped)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} goldens REGEX "^TEST(_P|_F)?\\([A-Za-z0-9]*Golden," LIMIT_COUNT 1)
    if(goldens)
      set(grouped "*Golden.*")
    endif()
  endforeach()
  cleave_discover_tests(${module}_test ${module} quick "${grouped}" ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
