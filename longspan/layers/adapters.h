// LoRA adapters (arXiv 2106.09685) of whole layers of any kind.
#pragma once

#include <optional>

#include "longspan/kernels/dropout.h"
#include "longspan/layers/layer.h"

namespace longspan {

/// Returns the layer without its adapters. The copy shares everything else.
Layer without_adapters(const Layer& layer);

/// True if an adapter of the layer has magnitudes (Linear).
bool has_magnitudes(const Layer& layer);

/// Returns the layer for one pass over a row: with dropout on its adapters' inputs, for a row's
/// tokens, and with the lengths to which magnitudes refer (Linear::with_lengths), so that forward
/// and backward compute these once. `rows_L`: as in run_layer().
Layer for_pass(const Layer& layer, const std::optional<Dropout>& dropout, const at::Tensor& rows_L);

}  // namespace longspan
