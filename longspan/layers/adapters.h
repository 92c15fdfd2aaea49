// LoRA's adapters (arXiv 2106.09685) of whole layers, whatever the layers are.
#pragma once

#include "longspan/kernels/dropout.h"
#include "longspan/layers/layer.h"

namespace longspan {

/// The layer without its adapters; shares everything else.
Layer without_adapters(const Layer& layer);

/// With dropout of the adapters' inputs for a row's tokens; `rows_L` as in run_layer().
Layer with_dropout(const Layer& layer, const Dropout& dropout, const at::Tensor& rows_L);

}  // namespace longspan
