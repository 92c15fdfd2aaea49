#include "longspan/session/backends.h"

#include <stdexcept>

#include "longspan/cuda/cuda.h"
#include "longspan/settings/choices.h"

namespace longspan {

const BlockKernel& block_kernel_of(const DeviceChoice& device) {
  if (!device.cuda()) return cpu_block_kernel();
  return load_cuda().block_kernel(cpu_block_kernel(), cuda_block_kernel());
}

std::unique_ptr<ActivationOffload> activation_offload(const MemorySettings& config,
                                                      at::Device device) {
  switch (activations_offloaded_to(config)) {
    case OffloadedTo::kNowhere:
      return nullptr;
    case OffloadedTo::kMemory:
      return std::make_unique<ActivationOffload>(device, "");
    case OffloadedTo::kDisk:
      return std::make_unique<ActivationOffload>(device, config.offload_folder);
  }
  throw std::logic_error("no place for the activations");
}

}  // namespace longspan
