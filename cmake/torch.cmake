# libtorch out of the Python environment. find_package(Torch) is not used: on a CUDA build of torch it demands a toolkit.
find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter)
if(NOT TORCH_DIR)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
  OUTPUT_VARIABLE TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT TORCH_DIR)
  message(FATAL_ERROR "No torch in ${Python3_EXECUTABLE}. Install it there (pip install torch) or run `make`, which does.")
endif()
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import runpy; print(runpy.run_path('${TORCH_DIR}/version.py')['__version__'])"
  OUTPUT_VARIABLE TORCH_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE)
message(STATUS "torch ${TORCH_VERSION} in ${TORCH_DIR}")
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "torch ${TORCH_VERSION} is too old: 2.11 to 2.15 are supported.")
endif()

foreach(name c10 torch_cpu)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES
    IMPORTED_LOCATION ${TORCH_DIR}/lib/lib${name}.so
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_DIR}/include;${TORCH_DIR}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_C10D_GLOO;USE_DISTRIBUTED;LONGSPAN_TORCH_VERSION=\"${TORCH_VERSION}\"")
endforeach()
find_package(Threads REQUIRED)
# torch's own OpenMP runtime: one process must not hold two.
file(GLOB TORCH_OPENMP ${TORCH_DIR}/lib/libgomp*.so*)
set_property(TARGET torch_cpu APPEND PROPERTY INTERFACE_LINK_LIBRARIES c10 Threads::Threads ${TORCH_OPENMP})
set(CMAKE_BUILD_RPATH ${TORCH_DIR}/lib)

# nlohmann-json: PyPI ships the headers; Debian's are taken where they are.
if(NOT JSON_DIR)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import sysconfig, os; p = sysconfig.get_paths(); print(next((d for d in (os.path.join(p['platlib'], 'nlohmann_json', 'include'), os.path.join(p['data'], 'include'), os.path.join(p['purelib'], 'include')) if os.path.exists(os.path.join(d, 'nlohmann', 'json.hpp'))), ''))"
  OUTPUT_VARIABLE JSON_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT JSON_DIR)
  find_path(JSON_DIR nlohmann/json.hpp REQUIRED)
endif()
add_library(nlohmann_json_headers INTERFACE)
target_include_directories(nlohmann_json_headers SYSTEM INTERFACE ${JSON_DIR})
