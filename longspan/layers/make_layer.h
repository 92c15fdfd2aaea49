// Makes the layers of a ModelSpec.
#pragma once

#include "longspan/layers/layer.h"
#include "longspan/layers/layer_weights.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Makes layer number `layer` of the model. `parameters`: by name. `exchange`: for experts on other
/// processes; null: all experts are in `parameters`.
Layer make_layer(const ModelSpec& model, int64_t layer, const TensorsByName& parameters,
                 double lora_scale, ExpertExchange* exchange = nullptr);

}  // namespace longspan
