#include "longspan/models/decoder.h"

namespace longspan {

std::vector<ParameterShape> parameter_shapes(const ModelConfig& config) {
  std::vector<ParameterShape> shapes;
  for (const ParameterSpec& parameter : parameters_of(spec_of(config))) {
    shapes.push_back({parameter.name, parameter.shape});
  }
  return shapes;
}

}  // namespace longspan
