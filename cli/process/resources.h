// CPU and memory settings of a worker.
#pragma once

#include "longspan/rendezvous/rendezvous.h"

namespace longspan {

/// Raises this process's limit of open files and connections (ulimit -n) as far as the system
/// allows. Child processes inherit the limit.
void raise_descriptor_limit();

/// Gives this process threads_of_worker() threads (cores.h), unless OMP_NUM_THREADS is set.
void choose_threads(const Rendezvous& where);

/// Limits the number of compiled gemms in memory. Call before the first gemm. oneDNN caches one
/// gemm of some hundred kilobytes for each shape. The layer between oneDNN and torch has a second
/// such cache in each thread. Rows of one length have some 25 shapes. With rows of many lengths,
/// the default of both caches, 1024 gemms, takes 0.5 GB. The environment
/// (ONEDNN_PRIMITIVE_CACHE_CAPACITY, LRU_CACHE_CAPACITY) takes precedence.
void bound_compiled_gemms();

/// Allocates all CPU tensors in the pool from here on (memory/tensor_pool.h). Call before making
/// tensors.
void use_tensor_pool();

/// Silences c10d, unless the environment has TORCH_CPP_LOG_LEVEL. Without this call, c10d prints a
/// stack trace for every lost connection; CommunicationError already names the connection's loss.
/// Child processes get the original environment.
void quiet_c10d();

/// Configures torch's allocation of GPU memory and of pinned memory. Call before the first use of a
/// GPU. Expandable segments leave no gaps between rows of many lengths. Pinned memory above a MiB
/// gets the requested size, not the next power of two, if torch can do that. The environment
/// (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF) takes precedence.
void choose_allocation();

}  // namespace longspan
