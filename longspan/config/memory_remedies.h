// The keys that save memory, for out-of-memory errors. No torch.
#pragma once

namespace longspan {

inline constexpr const char* kMemoryRemedies =
    "a larger sequence_parallel_size, zero_stage: 3, offload_optimizer, offload_params, "
    "offload_activations, kept_mlp_layers: 0, tiled_mlp, gradient checkpointing "
    "(disable_gradient_checkpointing: false), a smaller per_device_train_batch_size or cutoff_len";

}  // namespace longspan
