# Compiles up to 24 files of one folder and target as one unit (8 tests), so that their common headers are compiled once.
# Files with flags of their own stay alone. So do files that define the same names as their neighbours, each in an
# anonymous namespace: descriptions of methods, optimizers and stages (all define `make`), and the tests of such rooms.
set(DESCRIPTION "^extern const (Method|UpdateRule|Stage) k[A-Za-z0-9_]+{")
set(ALONE "^longspan/stages/"
  "^longspan/(account|base|config|cuda|kernels|layers|models|optim|plan|registers|sequence_parallel|settings|text)/.*_test\\.cpp")

function(unite_sources target)
  if(NOT LONGSPAN_UNITY)
    return()
  endif()
  # Paths in units are relative, so that the compiler cache serves every checkout.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELOCATABLE ON)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It warns of a class with a member of an anonymous namespace, wherever that is not in the unit's own file.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  list(JOIN ALONE "|" alone)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    file(STRINGS ${CMAKE_SOURCE_DIR}/${path} descriptions REGEX "${DESCRIPTION}" LIMIT_COUNT 1)
    if(descriptions OR path MATCHES "${alone}")
      continue()
    endif()
    cmake_path(GET path PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER ${folder} room)
    if(NOT DEFINED files_of_${room})
      set(files_of_${room} 0)
    endif()
    set(most 24)
    if(path MATCHES "_test\\.cpp$")
      set(most 8)
    endif()
    math(EXPR unit "${files_of_${room}} / ${most}")
    math(EXPR files_of_${room} "${files_of_${room}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room}_${unit})
  endforeach()
endfunction()
