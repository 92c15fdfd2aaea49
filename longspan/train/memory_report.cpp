#include "longspan/train/memory_report.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/input/numbers.h"
#include "longspan/optim/update_rule.h"
#include "longspan/plan/disk_model.h"
#include "longspan/stages/stage.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// The sum for the block, or the embedding or head, that has the most.
int64_t largest_unit(const std::vector<HeldParameter>& parameters,
                     const std::function<int64_t(const HeldParameter&)>& bytes_of) {
  std::map<int64_t, int64_t> layers;
  int64_t largest = 0;
  for (const HeldParameter& parameter : parameters) {
    int64_t own = 0;  // of what is in no block
    int64_t& unit = parameter.spec.layer ? layers[*parameter.spec.layer] : own;
    unit += bytes_of(parameter);
    largest = std::max(largest, unit);
  }
  return largest;
}

std::vector<MemoryFacts::Layers> layers_of(const ModelSpec& model) {
  std::vector<MemoryFacts::Layers> layers;
  const std::vector<int64_t> counts = layers_of_pattern(model);
  for (size_t i = 0; i < counts.size(); ++i) {
    layers.push_back({cost_of(model.pattern[i], model.hidden_size), counts[i]});
  }
  return layers;
}

}  // namespace

RowLengths row_lengths(const std::vector<Example>& examples, int64_t batch_size) {
  std::vector<std::pair<int64_t, int64_t>> sizes;
  RowLengths row;
  for (const Example& example : examples) {
    int64_t tokens = 0, labels = 0;
    for (const Sample& document : example.documents) {
      tokens += std::ssize(document.input_ids);
      labels +=
          std::count_if(document.labels.begin() + (document.labels.empty() ? 0 : 1),
                        document.labels.end(), [](int32_t label) { return label != kIgnoreLabel; });
    }
    sizes.emplace_back(tokens, labels);
    row.keeps_places = row.keeps_places || !example.position_restarts.empty();
  }
  const int64_t count = std::min<int64_t>(batch_size, std::ssize(sizes));
  std::partial_sort(sizes.begin(), sizes.begin() + count, sizes.end(), std::greater<>());
  for (int64_t i = 0; i < count; ++i) {
    row.num_tokens += sizes[i].first;
    row.num_labels += sizes[i].second;
  }
  return row;
}

MemoryFacts memory_facts(const Config& config, const ModelSpec& model, const ParallelPlan& plan,
                         const RunParameters& parameters, const RowLengths& row, bool cuda) {
  const bool bf16 = config.bf16 || config.pure_bf16;
  const int64_t master_bytes = config.pure_bf16 ? 2 : 4;
  MemoryFacts facts;
  facts.hidden_size = model.hidden_size;
  facts.vocab_size = model.vocab_size;
  facts.layers = layers_of(model);
  facts.last_layer = static_cast<size_t>((model.num_layers - 1) % std::ssize(model.pattern));
  for (const RotaryKind& kind : rotary_kinds_of(model)) facts.angle_numbers += kind.head_dim;
  const UpdateRule& rule = update_rule_of(config);
  int64_t state_bytes = 0;
  for (const HeldParameter& parameter : parameters.used) {
    const int64_t bytes = parameter.num_bytes();
    facts.parameter_bytes += bytes;
    if (!parameter.trained) continue;
    facts.trained_parameter_bytes += bytes;
    facts.num_trained += parameter.spec.num_elements();
    // Values in use may be in another dtype than their masters, and thus gradients and states.
    HeldParameter updated = parameter;
    if (parameters.divided) updated.element_bytes = master_bytes;
    state_bytes += rule.state_bytes(updated);
  }
  facts.largest_unit_bytes = largest_unit(parameters.used, &HeldParameter::num_bytes);
  if (parameters.divided) {
    facts.held_on_device = parameters.divided->device;
    facts.held_on_host = parameters.divided->host;
    facts.trained_parameter_bytes = facts.num_trained * master_bytes;
    facts.largest_unit_gradient_bytes =
        largest_unit(parameters.used, [&](const HeldParameter& parameter) {
          return parameter.trained ? parameter.spec.num_elements() * master_bytes : 0;
        });
  }
  facts.reference_on_device = parameters.reference.device;
  facts.reference_on_host = parameters.reference.host;
  facts.optimizer_bytes =
      static_cast<double>(state_bytes) / std::max(1.0, static_cast<double>(facts.num_trained));
  facts.zero_stage = config.zero_stage.value_or(0);
  facts.shard_size = config.zero_shard_size.value_or(plan.world_size);
  facts.offload_optimizer = config.offload_optimizer;
  facts.offload_params = config.offload_params;
  facts.num_tokens = row.num_tokens;
  facts.num_labels = row.num_labels;
  facts.keeps_places = row.keeps_places;
  facts.sequence_size = plan.sequence_size;
  facts.exchanges_heads = plan.ulysses_size > 1;
  facts.passes_keys = plan.ring_size > 1;
  facts.head_waves = plan.head_waves;
  facts.compute_bytes = bf16 ? 2 : 4;
  for (const HeldParameter& parameter : parameters.used) {
    const ParameterRole role = parameter.spec.role;
    const int64_t bytes = parameter.element_bytes;
    // A gradient adds up in the dtype of its master.
    const bool bf16_sum = parameter.trained && config.pure_bf16;
    if (role == ParameterRole::kEmbedding) {
      facts.residual_bytes = std::max(bytes, facts.compute_bytes);
    }
    if (model.is_head(role)) {
      facts.casts_head = bytes > facts.compute_bytes && stage_of(config).uses_lm_head;
      facts.sums_head_apart = bf16_sum && stage_of(config).uses_lm_head;
    }
    if (role == ParameterRole::kProjection) {
      facts.casts_blocks = facts.casts_blocks || bytes > facts.compute_bytes;
      facts.sums_blocks_apart = facts.sums_blocks_apart || bf16_sum;
    }
  }
  facts.widens_attention = bf16 && !cuda;
  facts.attention_threads = cuda ? 0 : at::get_num_threads();
  facts.checkpointing = !config.disable_gradient_checkpointing;
  facts.offload_activations = config.offload_activations != "false";
  facts.in_file = config.offload_activations == "disk";
  facts.reads_ahead = facts.offload_activations && !facts.in_file && cuda;
  facts.mlp_tiles = config.tiled_mlp.value_or(0);
  return facts;
}

std::string MemoryReport::begin(int ranks_here, bool cuda) {
  meter_.restart();
  const std::string warning =
      warning_of_memory((cuda ? 0 : account_.device) + account_.host, ranks_here, machine_memory());
  return table_of(account_) + (warning.empty() ? "" : "\n" + warning);
}

std::string warning_of_memory(int64_t bytes_of_rank, int ranks_here, const MachineMemory& machine) {
  const int64_t bytes = product_of({bytes_of_rank, ranks_here}).value_or(INT64_MAX);
  if (bytes <= machine.bytes) return "";
  return fmt::format(
      "warning: {} of this run need some {}, and {}: the system may end the run. A smaller "
      "cutoff_len or per_device_train_batch_size, zero_stage with more machines, or "
      "offload_activations: disk take less.",
      counted(ranks_here, "rank"), name_bytes(bytes), machine.text());
}

std::string MemoryReport::end(const Group& world) {
  const MeasuredPeak mine = meter_.peak();
  measured_.clear();
  for (const std::string& line :
       world.gather_text(fmt::format("{} {} {}", mine.device, mine.host, mine.resident))) {
    std::istringstream numbers(line);
    MeasuredPeak& peak = measured_.emplace_back();
    numbers >> peak.device >> peak.host >> peak.resident;
  }
  return table_of(account_, measured_);
}

void MemoryReport::write(const std::string& folder) const {
  nlohmann::ordered_json json{{"facts",
                               {{"num_tokens", facts_.num_tokens},
                                {"num_labels", facts_.num_labels},
                                {"sequence_size", facts_.sequence_size},
                                {"zero_stage", facts_.zero_stage},
                                {"shard_size", facts_.shard_size}}},
                              {"device", account_.device},
                              {"host", account_.host},
                              {"activation_bytes_per_token", account_.activation_bytes_per_token}};
  for (const MemoryAccount::Line& line : account_.lines) {
    std::string name = line.name;
    name.erase(0, name.find_first_not_of(' '));
    json["account"].push_back(
        {{"name", name}, {"device", line.device}, {"host", line.host}, {"note", line.note}});
  }
  for (const MeasuredPeak& peak : measured_) {
    json["measured"].push_back(
        {{"device", peak.device}, {"host", peak.host}, {"resident", peak.resident}});
  }
  write_file_atomically(folder + "/memory.json", json.dump(1) + "\n");
}

}  // namespace longspan
