// Makes the layers that a ModelSpec describes.
#pragma once

#include "longspan/layers/layer.h"
#include "longspan/layers/layer_weights.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Layer number `layer` of the model, of parameters by their names.
Layer make_layer(const ModelSpec& model, int64_t layer, const TensorsByName& parameters,
                 double lora_scale);

}  // namespace longspan
