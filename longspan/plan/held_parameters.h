// Which parameters a run holds, in how many bytes, and which it trains: by the model's spec and the
// configuration alone, before there is a tensor. No torch.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "longspan/config/memory_settings.h"
#include "longspan/config/method_settings.h"
#include "longspan/spec/held_parameter.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

struct Config;

/// The names of the parameters that finetuning_type: freeze trains, by LLaMA-Factory's rules.
/// Throws UserError: more layers than there are, modules that the model does not have.
std::set<std::string> trained_by_freeze(const MethodSettings& config, const ModelSpec& model);

/// The parameters that the configuration trains the model with, the model's own first, in the order
/// of parameters_of, each in the dtype that it is held in. `lora`: the adapter, under
/// finetuning_type: lora. Throws UserError.
std::vector<HeldParameter> held_parameters(const Config& config, const ModelSpec& model,
                                           const LoraShape& lora);

/// The adapter that the configuration makes, where none is there yet. Throws UserError.
LoraShape lora_shape_of(const MethodSettings& config, const ModelSpec& model);

/// An adapter that was there before and is trained further: dropout is training's, not the
/// adapter's.
LoraShape as_trained(LoraShape adapter, const MethodSettings& config);

/// What load_trained_model will make of the model, where no adapter is there yet. Throws UserError.
std::vector<HeldParameter> planned_parameters(const Config& config, const ModelSpec& model);

/// Those of the reference model, which are not trained; none where the trained model without its
/// adapter is the reference. `model`: of ref_model, or else the trained one.
std::vector<HeldParameter> reference_parameters(const Config& config, const ModelSpec& model);

/// The parameters of one rank where so many ranks share out the experts, each as many.
std::vector<HeldParameter> parameters_here(std::vector<HeldParameter> all,
                                           int expert_parallel_size);

/// The same in the dtypes that they are used in: ZeRO and offloading cast what they gather.
/// `num_ranks`: those that divide one copy; of experts that are shared out, expert_shard_size() of
/// them.
std::vector<HeldParameter> used_parameters(const Config& config, std::vector<HeldParameter> held,
                                           int num_ranks, int expert_parallel_size = 1);

/// The ranks that divide one copy of the parameter.
int ranks_of(const HeldParameter& parameter, int num_ranks, int expert_parallel_size);
/// ZeRO-3: is the parameter whole only while it is used? `num_ranks`: those that divide it.
bool is_gathered(const MemorySettings& config, const HeldParameter& parameter, int num_ranks);

/// The bytes of values that stay with one rank between uses, where values are divided or offloaded
/// (optim/flat_parameters.h). `cuda`: the host of a GPU also holds what it sends there in the dtype
/// that it is used in.
HeldBytes divided_bytes(const Config& config, const std::vector<HeldParameter>& held, int num_ranks,
                        int expert_parallel_size = 1, bool cuda = false);

}  // namespace longspan
