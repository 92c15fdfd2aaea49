# `pip install .`: the program goes to the environment's bin/, the CUDA half to lib/ beside it, where the program
# looks for it (longspan/cuda/cuda.cpp); both find torch where it is.
add_custom_target(package DEPENDS longspan)
if(TARGET longspan_cuda)
  add_dependencies(package longspan_cuda)
endif()
if(SKBUILD)
  # The wheel is built for one environment: torch's path is that environment's.
  set_target_properties(longspan PROPERTIES INSTALL_RPATH ${TORCH_DIR}/lib)
  install(TARGETS longspan RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  if(TARGET longspan_cuda)
    set_target_properties(longspan_cuda PROPERTIES INSTALL_RPATH ${TORCH_DIR}/lib)
    install(TARGETS longspan_cuda LIBRARY DESTINATION ${SKBUILD_DATA_DIR}/lib)
  endif()
endif()
