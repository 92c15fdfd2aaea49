// The parameters that a run holds in memory: their names, bytes and trainability, from the model's
// spec and the configuration alone. No torch.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "longspan/account/account_settings.h"
#include "longspan/settings/memory_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/spec/held_parameter.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

/// Returns the names of the parameters that finetuning_type: freeze trains, by LLaMA-Factory's
/// rules. Throws UserError if the configuration asks for more layers than the model has, or for
/// modules that the model does not have.
std::set<std::string> trained_by_freeze(const MethodSettings& config, const ModelSpec& model);

/// Returns the parts of the model that the configuration does not freeze. finetuning_type decides
/// which parameters of these parts are trained. An adapter is added to these parts only.
std::set<ModelPart> unfrozen_parts(const MethodSettings& config, const ModelSpec& model);

/// Returns the parameters of a run, in the dtypes in which they are held: first the model's
/// parameters in the order of parameters_of, then the adapter's. `lora`: the adapter, for
/// finetuning_type: lora. Throws UserError.
std::vector<HeldParameter> held_parameters(const AccountSettings& settings, const ModelSpec& model,
                                           const LoraShape& lora);

/// Returns the shape of a new adapter by the configuration. Throws UserError.
LoraShape lora_shape_of(const MethodSettings& config, const ModelSpec& model);

/// Returns the shape of an existing adapter for further training, with the configuration's dropout.
LoraShape as_trained(LoraShape adapter, const MethodSettings& config);

/// Returns the parameters that load_trained_model will make, if there is no adapter yet. Throws
/// UserError.
std::vector<HeldParameter> planned_parameters(const AccountSettings& settings,
                                              const ModelSpec& model);

/// Returns the untrained parameters of the reference model; none if the trained model without its
/// adapter is the reference. `model`: the spec of ref_model if this key is set, otherwise the spec
/// of the trained model.
std::vector<HeldParameter> reference_parameters(const AccountSettings& settings,
                                                const ModelSpec& model);

/// Returns the parameters of one rank when experts are distributed over `expert_parallel_size`
/// ranks.
std::vector<HeldParameter> parameters_here(std::vector<HeldParameter> all,
                                           int expert_parallel_size);

/// Returns the parameters in the dtypes of computation: ZeRO and offloading cast gathered
/// parameters. `num_ranks`: the ranks that shard one copy. Distributed experts are sharded over
/// fewer ranks (expert_shard_size()).
std::vector<HeldParameter> used_parameters(const AccountSettings& settings,
                                           std::vector<HeldParameter> held, int num_ranks,
                                           int expert_parallel_size = 1);

/// Returns the number of ranks that together hold one copy of the parameter.
int ranks_of(const HeldParameter& parameter, int num_ranks, int expert_parallel_size);
/// True if ZeRO-3 gathers the parameter for each use. `num_ranks`: ranks that together hold one
/// copy of the parameter.
bool is_gathered(const MemorySettings& config, const HeldParameter& parameter, int num_ranks);

/// Returns the bytes of parameter values on one rank between uses, if values are sharded or
/// offloaded (optim/flat_parameters.h). `cuda`: also counts the host's cast copy of offloaded
/// values, from which a GPU gathers.
HeldBytes sharded_bytes(const AccountSettings& settings, const std::vector<HeldParameter>& held,
                        int num_ranks, int expert_parallel_size = 1, bool cuda = false);

/// Smaller gradients of whole parameters are copied into buckets with others
/// (session/gradient_reduction).
inline constexpr int64_t kBucketBytes = int64_t{4} << 20;
/// Returns the bytes of gradients that are copied into buckets.
int64_t bytes_in_buckets(const std::vector<HeldParameter>& parameters);

/// Returns the number of parameters in gemms and norms that a token passes through: without
/// embeddings, and with only the experts that a token uses.
int64_t num_parameters_without_embeddings(const std::vector<HeldParameter>& parameters,
                                          const ModelSpec& spec);

}  // namespace longspan
