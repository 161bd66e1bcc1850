# Builds with CLEAVE_MUTANTS compile copies of the sources that tests/mutants/faults.diff changes, with these changes.

set(CLEAVE_MUTANT_SOURCES ${PROJECT_BINARY_DIR}/mutated)
execute_process(COMMAND python3 ${PROJECT_SOURCE_DIR}/tests/mutants/apply.py ${CLEAVE_MUTANT_SOURCES}
  OUTPUT_VARIABLE CLEAVE_MUTATED ERROR_VARIABLE problem RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${problem}")
endif()
string(REPLACE "\n" ";" CLEAVE_MUTATED "${CLEAVE_MUTATED}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CLEAVE_MUTATED} tests/mutants/apply.py
  tests/mutants/faults.diff)

# Replaces the sources in the list `name` that have mutants by their copies.
function(cleave_use_mutants name)
  foreach(source IN LISTS CLEAVE_MUTATED)
    set(copy ${CLEAVE_MUTANT_SOURCES}/${source})
    list(FIND ${name} ${PROJECT_SOURCE_DIR}/${source} at)
    if(at GREATER -1)
      list(REMOVE_AT ${name} ${at})
      list(APPEND ${name} ${copy})
      # For a source that includes itself, as those of Highway do.
      set_source_files_properties(${copy} PROPERTIES INCLUDE_DIRECTORIES ${CLEAVE_MUTANT_SOURCES})
    endif()
  endforeach()
  set(${name} "${${name}}" PARENT_SCOPE)
endfunction()
