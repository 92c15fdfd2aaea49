// Makes the layers that a ModelSpec describes.
#pragma once

#include "longspan/layers/layer.h"
#include "longspan/layers/layer_weights.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Layer number `layer` of the model, of parameters by their names. `exchange`: where experts are
/// that are not among them; null: all are.
Layer make_layer(const ModelSpec& model, int64_t layer, const TensorsByName& parameters,
                 double lora_scale, ExpertExchange* exchange = nullptr);

}  // namespace longspan
