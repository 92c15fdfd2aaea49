# The CUDA half, a shared object of its own that the program loads at run time where a GPU is. It is built against the
# headers in pip's packages (no toolkit): torch brings nvidia-cuda-runtime and nvidia-nccl; nvidia-cuda-crt and
# nvidia-cuda-cccl are in tools/requirements.txt and, for `pip install .`, asked for by tools/build_backend. The program
# itself never links CUDA, so one program serves both builds of torch.
option(LONGSPAN_CUDA "Build the CUDA half where the environment allows it" ON)

# Said when configuring (`make` shows it) and by the program where a GPU is missed: `longspan env`.
function(skip_cuda reason)
  message(NOTICE "CUDA: the CUDA half is skipped, the program will run on the CPU only: ${reason}")
  set_source_files_properties(longspan/cuda/cuda.cpp PROPERTIES
    COMPILE_DEFINITIONS "LONGSPAN_CUDA_SKIPPED=\"${reason}\"")
endfunction()

execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import runpy; print(runpy.run_path('${TORCH_DIR}/version.py')['cuda'] or '')"
  OUTPUT_VARIABLE TORCH_CUDA_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT LONGSPAN_CUDA)
  skip_cuda("it was switched off, LONGSPAN_CUDA=OFF")
  return()
endif()
if(NOT TORCH_CUDA_VERSION OR NOT EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so)
  skip_cuda("torch ${TORCH_VERSION} is a CPU build")
  return()
endif()

get_filename_component(SITE_PACKAGES ${TORCH_DIR} DIRECTORY)
file(GLOB CUDA_INCLUDE_DIRS ${SITE_PACKAGES}/nvidia/*/include)
find_path(CUDA_RUNTIME_DIR cuda_runtime_api.h PATHS ${CUDA_INCLUDE_DIRS} NO_DEFAULT_PATH)
find_path(CUDA_CRT_DIR crt/host_defines.h PATHS ${CUDA_INCLUDE_DIRS} NO_DEFAULT_PATH)
# Where its packages put it has changed: beside the other headers, or in a folder of its own among them.
find_path(CUDA_CCCL_DIR nv/target PATHS ${CUDA_INCLUDE_DIRS} PATH_SUFFIXES cccl NO_DEFAULT_PATH)
find_path(NCCL_DIR nccl.h PATHS ${CUDA_INCLUDE_DIRS} NO_DEFAULT_PATH)
file(GLOB CUDART ${SITE_PACKAGES}/nvidia/*/lib/libcudart.so.*)
foreach(part "CUDA_RUNTIME_DIR;nvidia-cuda-runtime" "CUDA_CRT_DIR;nvidia-cuda-crt"
    "CUDA_CCCL_DIR;nvidia-cuda-cccl" "NCCL_DIR;nvidia-nccl" "CUDART;nvidia-cuda-runtime")
  list(GET part 0 variable)
  list(GET part 1 package)
  if(NOT ${variable})
    skip_cuda("no files of the pip package ${package} for CUDA ${TORCH_CUDA_VERSION} in ${SITE_PACKAGES}")
    return()
  endif()
endforeach()
message(STATUS "CUDA: ${TORCH_CUDA_VERSION} by pip's headers")
set_source_files_properties(longspan/cuda/cuda.cpp PROPERTIES COMPILE_DEFINITIONS "LONGSPAN_CUDA_SKIPPED=\"\"")

add_library(longspan_cuda SHARED cuda/entry.cpp)
target_include_directories(longspan_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(longspan_cuda SYSTEM PRIVATE ${CUDA_RUNTIME_DIR} ${CUDA_CRT_DIR} ${CUDA_CCCL_DIR}
  ${NCCL_DIR})
target_compile_definitions(longspan_cuda PRIVATE USE_C10D_NCCL)
set_target_properties(longspan_cuda PROPERTIES CXX_VISIBILITY_PRESET hidden)
target_link_libraries(longspan_cuda PRIVATE torch_cpu c10 ${TORCH_DIR}/lib/libtorch_cuda.so
  ${TORCH_DIR}/lib/libc10_cuda.so ${CUDART})
# Undefined symbols are an error now, not at the first start on a machine with a GPU.
target_link_options(longspan_cuda PRIVATE -Wl,--no-undefined)
add_dependencies(longspan longspan_cuda)  # which loads it from beside itself
