// LoRA adapters (arXiv 2106.09685) of whole layers of any kind.
#pragma once

#include "longspan/kernels/dropout.h"
#include "longspan/layers/layer.h"

namespace longspan {

/// Returns the layer without its adapters. The copy shares everything else.
Layer without_adapters(const Layer& layer);

/// Returns the layer with dropout on its adapters' inputs, for a row's tokens. `rows_L`: as in
/// run_layer().
Layer with_dropout(const Layer& layer, const Dropout& dropout, const at::Tensor& rows_L);

}  // namespace longspan
