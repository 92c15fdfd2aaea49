// Sources of parameters: functions that make a parameter's values, before the parameter is placed
// on a device or sharded.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {

/// Returns the parameters of a model in memory as sources. Throws UserError for missing and
/// unexpected parameters, and for wrong shapes.
std::vector<ParameterSource> sources_of(const std::vector<NamedTensor>& given,
                                        const ModelConfig& model, at::ScalarType dtype);

/// Returns copies of `parameters` as sources, in the parameters' dtypes.
std::vector<ParameterSource> sources_from(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs);

/// Makes the sources compute W += scale B A for each adapter when a weight is made. The sum is
/// computed in fp32, because bf16 would round twice. Throws UserError, as load_adapter() does.
void merge_adapters(const std::vector<std::string>& folders, const ModelConfig& model,
                    std::vector<ParameterSource>& sources);

/// Changes the dtype in which the parameter is made.
void convert(ParameterSource& source, at::ScalarType dtype);

/// Makes all parameters at once, each whole on the device.
std::vector<NamedTensor> make_all(const std::vector<ParameterSource>& sources, at::Device device);

}  // namespace longspan
