#include "longspan/bench/bench_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "longspan/cuda/cuda.h"

namespace longspan {

BenchDevice bench_device(const DeviceChoice& choice, int local_rank) {
  if (!choice.cuda()) return {};
  const int gpu = local_rank % choice.num_gpus;
  use_gpu(gpu, {});
  return {.device = device_of(choice, gpu),
          .link = choice.shared ? Link::kGlooThroughHost : Link::kNccl,
          .kernel = &load_cuda().block_kernel(cpu_block_kernel(), cuda_block_kernel()),
          .name = choice.gpu_name};
}

void wait_for_device(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace longspan
