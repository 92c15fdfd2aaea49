# Compiles up to eight files of one folder and target as one unit: what they include is compiled once. Files with flags of
# their own stay alone, and so do those that define the same names as their neighbours, each in an anonymous namespace:
# commands (run), families (read_own_keys), methods and optimizers (make), stages (kKeys), and the tests of such rooms.
set(ALONE "^cli/[a-z_]+\\.cpp|^longspan/models/|^longspan/stages/|^longspan/optim/(adamw|muon|.*_test)\\.cpp"
  "^longspan/sequence_parallel/(.*_test|allgather|.*ulysses|llama3|local|loongtrain|ring|striped_ring|usp)\\.cpp"
  "^longspan/(kernels|layers|config|plan|text)/.*_test\\.cpp")

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
    if(path MATCHES "${alone}")
      continue()
    endif()
    cmake_path(GET path PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER ${folder} room)
    if(NOT DEFINED files_of_${room})
      set(files_of_${room} 0)
    endif()
    math(EXPR unit "${files_of_${room}} / 8")
    math(EXPR files_of_${room} "${files_of_${room}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room}_${unit})
  endforeach()
endfunction()
