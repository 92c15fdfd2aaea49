// The processor and the memory of a worker.
#pragma once

namespace longspan {

/// Raises this process's limit of open files and connections (ulimit -n) as far as the system
/// allows. Programs that it starts get the raised limit.
void raise_descriptor_limit();

/// How many cores this machine has; 0: the system does not say.
int num_cores();

/// Shares the cores out among the workers of a machine, unless OMP_NUM_THREADS is set.
void choose_threads();

/// Bounds how many compiled gemms stay in memory. Call it before the first gemm. oneDNN caches one
/// for each shape, of some hundred kilobytes, and so does the layer between it and torch in each
/// thread. Rows of one length have some 25 shapes. Where rows are of many lengths, the default of
/// both caches, 1024 gemms, takes 0.5 GB. The environment (ONEDNN_PRIMITIVE_CACHE_CAPACITY,
/// LRU_CACHE_CAPACITY) takes precedence.
void bound_compiled_gemms();

/// From here on, and for good, tensors on the CPU are in the pool (memory/tensor_pool.h). Call it
/// before making tensors.
void use_tensor_pool();

/// c10d prints a stack trace for every lost connection; CommunicationError says what it means. From
/// here on c10d is silent, unless the environment has TORCH_CPP_LOG_LEVEL. Programs that this one
/// starts get the environment that it was given.
void quiet_c10d();

/// How torch takes a GPU's memory, and the host's that is pinned. Call it before the first GPU is
/// used. Segments that grow leave no gaps between rows of many lengths. Pinned memory of more than
/// a MiB is as large as was asked for, and not the next power of two, where torch can do that. The
/// environment (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF) takes precedence.
void choose_allocation();

}  // namespace longspan
