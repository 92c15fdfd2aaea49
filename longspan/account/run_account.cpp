#include "longspan/account/run_account.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "longspan/account/kept_layers.h"
#include "longspan/account/layers_of_row.h"
#include "longspan/account/saved_copy.h"
#include "longspan/account/step_peak.h"
#include "longspan/attention/call_plan.h"
#include "longspan/config/config.h"
#include "longspan/cuda/driver.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/rank_groups.h"
#include "longspan/registers/stage.h"
#include "longspan/registers/update_rule.h"
#include "longspan/settings/choices.h"
#include "longspan/spec/eight_bit_sizes.h"
#include "longspan/spec/expert_gemms.h"

namespace longspan {
namespace {

/// Returns the sum for the layer, embedding or head that has the most.
int64_t largest_unit(const std::vector<HeldParameter>& parameters,
                     const std::function<int64_t(const HeldParameter&)>& bytes_of) {
  std::map<int64_t, int64_t> layers;
  int64_t largest = 0;
  for (const HeldParameter& parameter : parameters) {
    int64_t own = 0;  // of parameters outside the layers
    int64_t& unit = parameter.spec.layer ? layers[*parameter.spec.layer] : own;
    unit += bytes_of(parameter);
    largest = std::max(largest, unit);
  }
  return largest;
}

/// Tokens of a rank, and their device.
struct TokensAtWork {
  int64_t number;
  bool cuda;
};

/// Returns the bytes of temporaries of a product with a matrix in 8 bits.
int64_t product_bytes(const ParameterSpec& matrix, const TokensAtWork& tokens) {
  const int64_t inputs = matrix.shape.at(1), outputs = matrix.shape.at(0);
  return std::min(tokens.number, eight_bit_tokens(inputs, outputs, tokens.cuda)) *
         eight_bit_token_bytes(inputs, outputs);
}

/// Returns the bytes of each unit: of parameters that are used together.
MemoryFacts::Units units_of(const AccountSettings& settings, const ModelSpec& model,
                            const ParallelPlan& plan, const RunParameters& parameters,
                            int64_t master_bytes, const TokensAtWork& tokens) {
  MemoryFacts::Units units;
  units.head_is_embedding = model.tied_head;
  units.layers.resize(static_cast<size_t>(model.num_layers));
  for (const HeldParameter& parameter : parameters.used) {
    const int unit = parameter.spec.unit;
    if (unit == kAlwaysThere) continue;
    // The backward of a vision tower follows that of the embedding.
    const bool after_embedding =
        unit == kEmbeddingUnit || parameter.spec.part != ModelPart::kLanguage;
    MemoryFacts::Unit& of = unit == model.head_unit() ? units.head
                            : after_embedding         ? units.embedding
                                                      : units.layers.at(unit - 1);
    const int ranks = ranks_of(parameter, plan.shard_size, plan.expert_parallel_size);
    if (parameter.packed) {
      of.unpacked += parameter.used_bytes();
      if (multiplies_codes(*parameter.packed)) {
        of.product = std::max(of.product, product_bytes(parameter.spec, tokens));
        // Other gathered packed bytes are freed before the unit's computation.
        if (is_gathered(settings.memory, parameter, ranks)) of.unpacked += parameter.num_bytes();
      }
      continue;
    }
    if (is_gathered(settings.memory, parameter, ranks)) {
      of.gathered += parameter.num_bytes();
      // If the share is sent in another form than it is held. With one rank, the sent copy is the
      // one used.
      const bool cast = parameter.trained && parameter.element_bytes < master_bytes;
      if (ranks > 1 &&
          (settings.memory.offload_params || (cast && !settings.memory.offload_optimizer))) {
        of.sent += parameter.num_bytes() / ranks;
      }
    }
    if (!parameter.trained) continue;
    of.gradients +=
        parameters.sharded ? parameter.spec.num_elements() * master_bytes : parameter.num_bytes();
  }
  return units;
}

/// Returns the temporary bytes after the last backward of a step: of the gradient reduction and the
/// update.
int64_t update_bytes(const AccountSettings& settings, const ParallelPlan& plan,
                     const RunParameters& parameters, const MemoryFacts& facts,
                     int64_t master_bytes, const Hardware& hardware) {
  const bool in_buckets = !parameters.sharded && plan.world_size > 1;
  int64_t of_sums = in_buckets ? bytes_in_buckets(parameters.used) : 0, of_rule = 0, of_wholes = 0;
  const UpdateRule& rule = update_rule_of(settings.optimization);
  const int64_t largest_numbers = facts.largest_unit_gradient_bytes / master_bytes;
  for (const HeldParameter& parameter : parameters.used) {
    if (!parameter.trained) continue;
    if (settings.memory.offload_optimizer) continue;
    of_rule = std::max(of_rule, rule.working_bytes(parameter, hardware.cuda));
    // Sharded matrices are gathered in bf16, one unit at a time.
    if (parameters.sharded && rule.wants_whole(parameter.spec)) {
      of_wholes = 2 * 2 * largest_numbers;
    }
  }
  // All gradients of a row with ranks of its own are reduced after the backward.
  if (parameters.sharded && facts.zero_stage < 2 && !facts.sums_units && facts.shard_size > 1) {
    of_sums =
        bytes_under_reduction(facts.reduction, facts.shard_size, facts.largest_unit_gradient_bytes);
  }
  return std::max(of_sums, of_rule + of_wholes);
}

/// Returns the inputs for a model's tower, whose lowest trained unit says where tensors are saved.
MemoryFacts::Tower tower_of(const ModelSpec& model, const RunParameters& parameters,
                            const RowLengths& row, int64_t compute_bytes, int64_t rows_ahead) {
  MemoryFacts::Tower tower;
  if (!model.vision || row.num_patches == 0) return tower;
  tower.spec = *model.vision;
  tower.num_patches = row.num_patches;
  tower.largest_frame = row.largest_frame;
  tower.rows_ahead = rows_ahead;
  tower.most_features = row.row_patches / model.vision->merged_patches();
  tower.residual_bytes = compute_bytes;
  int64_t lowest = model.vision->merger_unit() + 1;
  for (const HeldParameter& parameter : parameters.used) {
    if (parameter.spec.part == ModelPart::kLanguage || parameter.spec.unit == kAlwaysThere)
      continue;
    tower.residual_bytes = std::max<int64_t>(tower.residual_bytes, parameter.element_bytes);
    // Mergers of deepstack have units above the merger's, and inputs of blocks below it.
    if (parameter.trained) {
      lowest = std::min<int64_t>(lowest, parameter.spec.unit - model.vision_unit());
    }
  }
  tower.first_saving_block = std::max<int64_t>(0, lowest - 1);
  return tower;
}

/// True if the reference computes each row within the row's loss.
bool has_teacher(const AccountSettings& settings) {
  const Stage& stage = stage_of(settings.method);
  return stage.compares_distributions && stage.has_reference(settings.preferences);
}

/// Returns one rank's parameters of a reference that computes the rows of training; none if there
/// is no such reference, or if it is the trained model without adapters.
std::vector<HeldParameter> reference_of_rows(const AccountSettings& settings,
                                             const ModelSpec& reference, int expert_parallel_size) {
  if (!stage_of(settings.method).has_reference(settings.preferences) ||
      settings.preferences.precompute_ref_log_probs) {
    return {};
  }
  return parameters_here(reference_parameters(settings, reference), expert_parallel_size);
}

}  // namespace

RunParameters planned_run_parameters(const AccountSettings& settings, const ModelSpec& model,
                                     const ParallelPlan& plan, const ModelSpec* reference,
                                     const Hardware& hardware) {
  const int ranks = plan.shard_size, experts = plan.expert_parallel_size;
  const std::vector<HeldParameter> held =
      parameters_here(planned_parameters(settings, model), experts);
  RunParameters parameters{.used = used_parameters(settings, held, ranks, experts),
                           .sharded = std::nullopt,
                           .reference = {}};
  if (zero_stage_of(settings.memory) > 0 || settings.memory.offload_optimizer || experts > 1) {
    parameters.sharded = sharded_bytes(settings, held, ranks, experts, hardware.cuda);
  }
  const std::vector<HeldParameter> compared =
      reference_of_rows(settings, reference == nullptr ? model : *reference, experts);
  if (divides_values(settings.memory)) {
    parameters.reference = sharded_bytes(settings, compared, ranks, experts, hardware.cuda);
  } else {
    for (const HeldParameter& parameter : compared) {
      parameters.reference.device += parameter.num_bytes();
    }
  }
  return parameters;
}

namespace {

MemoryFacts facts_of_model(const AccountSettings& settings, const ModelSpec& model,
                           const ParallelPlan& plan, const RunParameters& parameters,
                           const RowLengths& row, const Hardware& hardware) {
  const bool bf16 = computes_in_bf16(settings.model, settings.optimization);
  const int64_t master_bytes = settings.model.pure_bf16 ? 2 : 4;
  MemoryFacts facts;
  facts.hidden_size = model.hidden_size;
  facts.vocab_size = model.vocab_size;
  facts.compute_bytes = bf16 ? 2 : 4;
  facts.layers = layers_of_row(model, plan, row, facts.compute_bytes, hardware.cuda);
  facts.last_layer = static_cast<size_t>((model.num_layers - 1) % std::ssize(model.pattern));
  for (const RotaryKind& kind : rotary_kinds_of(model)) facts.angle_numbers += kind.dim;
  const UpdateRule& rule = update_rule_of(settings.optimization);
  int64_t state_bytes = 0;
  for (const HeldParameter& parameter : parameters.used) {
    const int64_t bytes = parameter.num_bytes();
    facts.parameter_bytes += bytes;
    if (!parameter.trained) continue;
    facts.trained_parameter_bytes += bytes;
    facts.num_trained += parameter.spec.num_elements();
    if (parameter.spec.expert && plan.expert_parallel_size > 1) {
      facts.num_trained_of_experts += parameter.spec.num_elements();
      facts.trained_expert_bytes += bytes;
    }
    // Values at use may have another dtype than their masters. Gradients and states follow the
    // masters.
    HeldParameter updated = parameter;
    if (parameters.sharded) updated.element_bytes = master_bytes;
    state_bytes += rule.state_bytes(updated);
  }
  facts.largest_unit_bytes = largest_unit(parameters.used, [&](const HeldParameter& parameter) {
    const int ranks = ranks_of(parameter, plan.shard_size, plan.expert_parallel_size);
    return parameter.packed ||
                   (parameter.spec.expert && !is_gathered(settings.memory, parameter, ranks))
               ? 0
               : parameter.num_bytes();
  });
  if (parameters.sharded) {
    facts.held_on_device = parameters.sharded->device;
    facts.held_on_host = parameters.sharded->host;
    facts.trained_parameter_bytes = facts.num_trained * master_bytes;
    facts.trained_expert_bytes = facts.num_trained_of_experts * master_bytes;
    facts.largest_unit_gradient_bytes =
        largest_unit(parameters.used, [&](const HeldParameter& parameter) {
          return parameter.trained ? parameter.spec.num_elements() * master_bytes : 0;
        });
  }
  facts.reference_on_device = parameters.reference.device;
  facts.reference_on_host = parameters.reference.host;
  facts.optimizer_bytes =
      static_cast<double>(state_bytes) / std::max(1.0, static_cast<double>(facts.num_trained));
  facts.units =
      units_of(settings, model, plan, parameters, master_bytes,
               {(row.num_tokens + plan.sequence_size - 1) / plan.sequence_size, hardware.cuda});
  for (const MemoryFacts::Unit& unit : facts.units.layers) {
    facts.largest_unpacked = std::max(facts.largest_unpacked, unit.unpacked);
  }
  facts.accumulates = settings.optimization.gradient_accumulation_steps > 1;
  facts.scales_embedding = model.embedding_scale != 1.0;
  facts.zero_stage = zero_stage_of(settings.memory);
  facts.shard_size = settings.memory.zero_shard_size.value_or(plan.world_size);
  facts.expert_parallel_size = plan.expert_parallel_size;
  facts.expert_shard_size =
      expert_shard_size(static_cast<int>(facts.shard_size), plan.expert_parallel_size);
  if (sums_by_nccl(settings.model, hardware.cuda)) {
    facts.reduction =
        master_bytes < 4 ? GradientReduction::kWidenedScatter : GradientReduction::kScatter;
  }
  facts.offload_optimizer = settings.memory.offload_optimizer;
  facts.offload_params = settings.memory.offload_params;
  facts.sums_units = parameters.sharded && !plan.own_degrees;
  // Buckets of two units: of this one, and of the one before, whose backward is over.
  const bool in_buckets = !parameters.sharded && plan.world_size > 1 && !plan.own_degrees;
  facts.bucket_bytes =
      in_buckets ? std::min(bytes_in_buckets(parameters.used), 2 * kBucketBytes) : 0;
  facts.widens_sums = in_buckets && master_bytes < 4;
  facts.update_bytes = update_bytes(settings, plan, parameters, facts, master_bytes, hardware);
  facts.num_tokens = row.num_tokens;
  // A value head reads the last token of each document.
  facts.num_labels =
      stage_of(settings.method).uses_lm_head
          ? row.num_labels
          : std::min(row.num_labels, std::max<int64_t>(1, std::ssize(row.documents)));
  facts.keeps_places = row.keeps_places;
  facts.num_documents = std::max<int64_t>(1, std::ssize(row.documents));
  facts.attends_in_calls = hardware.cuda && !row.documents.empty() &&
                           has_several_calls(causal_blocks(Packing::from_documents(row.documents)));
  facts.sequence_size = plan.sequence_size;
  for (const HeldParameter& parameter : parameters.used) {
    const ParameterRole role = parameter.spec.role;
    const int64_t bytes = parameter.element_bytes;
    // A gradient accumulates in the dtype of its master.
    const bool bf16_sum = parameter.trained && settings.model.pure_bf16;
    if (role == ParameterRole::kEmbedding) {
      facts.residual_bytes = std::max(bytes, facts.compute_bytes);
    }
    if (model.is_head(role)) {
      facts.casts_head = bytes > facts.compute_bytes && stage_of(settings.method).uses_lm_head;
      facts.sums_head_apart = bf16_sum && stage_of(settings.method).uses_lm_head;
    }
    if (is_copied_for_use(parameter.spec) && !is_lora(role)) {  // adapters are small
      facts.casts_blocks = facts.casts_blocks || bytes > facts.compute_bytes;
      facts.sums_blocks_apart = facts.sums_blocks_apart || bf16_sum;
    }
  }
  facts.cuda = hardware.cuda;
  facts.composes_rows = hardware.composes_rows;
  if (hardware.cuda && settings.model.full_determinism) {
    const int known = cuda::multiprocessors_or_0(0);
    facts.deterministic_multiprocessors =
        known > 0 ? known : FlashAccumulators::kMostMultiprocessors;
  }
  // Besides the row that the tower computes, whose pixels wait only for a second model.
  const int64_t rows_of_steps = 2 * settings.optimization.gradient_accumulation_steps;
  facts.tower = tower_of(model, parameters, row, facts.compute_bytes,
                         has_teacher(settings) ? rows_of_steps : rows_of_steps - 1);
  for (const HeldParameter& parameter : parameters.used) {
    if (!parameter.spec.expert || parameter.spec.role != ParameterRole::kLoraA) continue;
    facts.expert_adapter_rank = parameter.spec.shape[0];
    facts.casts_expert_adapters = parameter.element_bytes > facts.compute_bytes;
  }
  facts.experts_at_once = hardware.cuda && !hardware.composes_rows && bf16 &&
                          facts.expert_adapter_rank % kGroupedNumbers == 0 &&
                          (facts.expert_adapter_rank == 0 || settings.method.lora_dropout == 0);
  const int capability = hardware.cuda ? cuda::capability_or_0(0) : 0;  // 0: not known
  facts.copies_rows_of_experts = facts.experts_at_once && !settings.model.full_determinism &&
                                 (capability == 0 || library_groups_gemms(capability));
  facts.num_groups = std::ssize(connected_groups(plan));
  facts.widens_attention = bf16 && !hardware.cuda;
  facts.attention_threads = hardware.cuda ? 0 : hardware.num_threads;
  facts.checkpointing = !settings.model.disable_gradient_checkpointing;
  const OffloadedTo offloaded_to = activations_offloaded_to(settings.memory);
  facts.offload_activations = offloaded_to != OffloadedTo::kNowhere;
  facts.in_file = offloaded_to == OffloadedTo::kDisk;
  facts.reads_ahead = facts.offload_activations && !facts.in_file && hardware.cuda;
  facts.mlp_tiles = settings.memory.tiled_mlp.value_or(0);
  facts.drops_inputs = trains_adapter(settings.method) && settings.method.lora_dropout > 0;
  facts.has_magnitudes = std::ranges::any_of(parameters.used, [](const HeldParameter& parameter) {
    return parameter.spec.role == ParameterRole::kLoraMagnitude;
  });
  // The number that fits is known only where the run is (train/run_memory.h).
  if (const auto said = said_kept_layers(settings.model, settings.memory, model, hardware.cuda)) {
    keep_layers(facts, model, said->count);
  }
  return facts;
}

/// Returns the facts of a model whose passes save nothing for a backward.
MemoryFacts facts_of_reference(const AccountSettings& settings, const PlannedModel& reference,
                               const std::vector<HeldParameter>& held, const RowLengths& row,
                               const Hardware& hardware) {
  const ParallelPlan& plan = reference.plan;
  const RunParameters parameters{
      .used = used_parameters(settings, held, plan.shard_size, plan.expert_parallel_size),
      .sharded = std::nullopt,
      .reference = {}};
  MemoryFacts facts = facts_of_model(settings, reference.spec, plan, parameters, row, hardware);
  facts.checkpointing = true;  // queries, keys and values are freed after each layer
  facts.offload_activations = facts.in_file = facts.reads_ahead = facts.drops_inputs = false;
  facts.has_magnitudes = false;
  for (MemoryFacts::Layers& layers : facts.layers) layers.kept = 0;
  return facts;
}

}  // namespace

MemoryFacts memory_facts(const AccountSettings& settings, const PlannedModel& model,
                         const RunParameters& parameters, const RowLengths& row,
                         const Hardware& hardware, const std::optional<PlannedModel>& reference) {
  MemoryFacts facts = facts_of_model(settings, model.spec, model.plan, parameters, row, hardware);
  facts.saved_copy_bytes = saved_copy_bytes(settings, model.plan, parameters);
  const PlannedModel other = reference.value_or(model);
  const std::vector<HeldParameter> held =
      reference_of_rows(settings, other.spec, model.plan.expert_parallel_size);
  if (held.empty()) return facts;
  facts.reference =
      std::make_shared<const MemoryFacts>(facts_of_reference(settings, other, held, row, hardware));
  if (has_teacher(settings)) {
    const PolicySettings& policy = settings.preferences.policy;
    facts.divergence = {.is_computed = true,
                        .mixes = policy.distill_beta > 0 && policy.distill_beta < 1,
                        .top_k = policy.distill_top_k.value_or(0)};
  }
  return facts;
}

MemoryAccount planned_account(const AccountSettings& settings, const PlannedModel& model,
                              const RowLengths& row, const Hardware& hardware,
                              const std::optional<PlannedModel>& reference) {
  const RunParameters parameters = planned_run_parameters(
      settings, model.spec, model.plan, reference ? &reference->spec : nullptr, hardware);
  return account_of(memory_facts(settings, model, parameters, row, hardware, reference));
}

}  // namespace longspan
