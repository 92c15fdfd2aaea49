// Checks of a run that holds matrices in 4 or 8 bits.
#pragma once

namespace longspan {

struct Config;
struct ModelConfig;

/// Throws UserError if the run cannot hold the model's matrices in 4 or 8 bits: by
/// quantization_bit, or as its folder has them.
void require_four_bits(const Config& config, const ModelConfig& model);

}  // namespace longspan
