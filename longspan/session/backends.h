// The parts of a session that depend on the session's device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "longspan/attention/block_kernel.h"
#include "longspan/cuda/device_choice.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/settings/memory_settings.h"

namespace longspan {

const BlockKernel& block_kernel_of(const DeviceChoice& device);

/// Returns null if activations stay on the device.
std::unique_ptr<ActivationOffload> activation_offload(const MemorySettings& config,
                                                      at::Device device);

}  // namespace longspan
