// Sources of parameters: functions that make a parameter's values, before the parameter is placed
// on a device or sharded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/comm/group.h"
#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_source.h"
#include "longspan/spec/four_bits.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

struct MethodSettings;

/// Returns the parameters of a model in memory as sources. Throws UserError for missing and
/// unexpected parameters, and for wrong shapes.
std::vector<ParameterSource> sources_of(const std::vector<NamedTensor>& given,
                                        const ModelConfig& model, at::ScalarType dtype);

/// Returns copies of `parameters` as sources, in the parameters' dtypes.
std::vector<ParameterSource> sources_from(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs);

/// Makes the sources add each adapter to a weight when the weight is made (add_lora()). The sum is
/// computed in fp32, because bf16 would round twice. Throws UserError, as load_adapter() does.
void merge_adapters(const std::vector<std::string>& folders, const ModelConfig& model,
                    std::vector<ParameterSource>& sources);

/// Returns the adapter's own parameters, and makes the sources copy the parameters that the adapter
/// holds whole.
std::vector<NamedTensor> take_whole(const Adapter& adapter, std::vector<ParameterSource>& sources);

/// Returns the matrices of a new adapter by PiSSA (principal_part()), and makes the sources compute
/// the rest of each adapted weight. Throws UserError for adapters of experts, and for a rank above
/// the rank of a weight.
std::vector<NamedTensor> take_principal_parts(const LoraShape& shape, int64_t iterations,
                                              uint64_t seed, std::vector<ParameterSource>& sources);

/// Sets the magnitudes of a new decomposed adapter, among `adapter`, to the lengths of the rows of
/// the weights, as the run holds these: in the dtype of the sources, or in `packed`. Returns them.
std::vector<NamedTensor> set_magnitudes(const LoraShape& shape,
                                        const std::vector<ParameterSource>& sources,
                                        const std::optional<FourBits>& packed,
                                        const std::vector<NamedTensor>& adapter);

/// Throws UserError on every rank if the ranks computed other first values of a new adapter from
/// the weights (pissa_init, use_dora): a decomposition may differ between kinds of processors.
/// Collective.
void require_same_adapter(const MethodSettings& method, const std::vector<NamedTensor>& first,
                          const Group& world);

/// Makes the source copy `tensor`, in the source's dtype.
void replace(ParameterSource& source, const at::Tensor& tensor);

/// Changes the dtype in which the parameter is made.
void convert(ParameterSource& source, at::ScalarType dtype);

/// Makes all parameters at once, each whole on the device.
std::vector<NamedTensor> make_all(const std::vector<ParameterSource>& sources, at::Device device);

}  // namespace longspan
