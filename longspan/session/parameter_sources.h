// The values of parameters before they are placed on a device or sharded.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {

/// Returns the parameters of a model in memory as sources. Throws UserError for missing, unexpected
/// and misshapen ones.
std::vector<ParameterSource> sources_of(const std::vector<NamedTensor>& given,
                                        const ModelConfig& model, at::ScalarType dtype);

/// Returns copies of `parameters` as sources, in their dtypes.
std::vector<ParameterSource> sources_from(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs);

/// Adds W += scale B A of each adapter to the weights when they are made, in fp32, since bf16 would
/// round twice. Throws as load_adapter.
void merge_adapters(const std::vector<std::string>& folders, const ModelConfig& model,
                    std::vector<ParameterSource>& sources);

/// Changes the dtype in which the parameter is made.
void convert(ParameterSource& source, at::ScalarType dtype);

/// Makes all parameters at once, each whole on the device.
std::vector<NamedTensor> make_all(const std::vector<ParameterSource>& sources, at::Device device);

}  // namespace longspan
