#include "longspan/models/parameter_hooks.h"

namespace longspan {

int head_unit(const ModelConfig& config) { return spec_of(config).head_unit(); }

}  // namespace longspan
