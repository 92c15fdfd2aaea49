#include "longspan/account/layers_of_row.h"

#include <algorithm>
#include <variant>

#include "longspan/account/kept_layers.h"
#include "longspan/plan/mixer_exchange.h"
#include "longspan/plan/recurrent_volume.h"

namespace longspan {
namespace {

/// Sets the memory of the rule: of all tokens of a rank, or of those that enter a slice, in fp32
/// and with more columns (GatedDeltaNet's over_slice), if they take more.
void add_rule(MemoryFacts::Layers& layers, const RecurrenceSpec& net, const ParallelPlan& plan,
              const Packing& padded, int64_t element_bytes) {
  layers.rule = rule_memory(net, element_bytes);
  layers.rule_tokens = padded.num_tokens() / std::max(1, plan.sequence_size);
  const int64_t entering = entering_tokens(plan, padded);
  RecurrenceSpec wide = net;
  wide.value_dim += net.key_dim;
  RuleMemory memory = rule_memory(wide, std::max<int64_t>(4, element_bytes));
  memory.token_bytes = layers.rule.token_bytes;
  const auto bytes = [](int64_t tokens, const RuleMemory& of) {
    return chunks_of_part(tokens, of) * of.chunk_bytes;
  };
  if (bytes(entering, memory) <= bytes(layers.rule_tokens, layers.rule)) return;
  layers.rule = memory;
  layers.rule_tokens = entering;
}

}  // namespace

std::vector<MemoryFacts::Layers> layers_of_row(const ModelSpec& model, const ParallelPlan& plan,
                                               const RowLengths& row, int64_t element_bytes,
                                               bool cuda) {
  const Packing padded =
      padded_row(plan, row.documents.empty() ? Packing::single(std::max<int64_t>(1, row.num_tokens))
                                             : Packing::from_documents(row.documents));
  std::vector<MemoryFacts::Layers> layers;
  const std::vector<int64_t> counts = layers_of_pattern(model);
  for (size_t i = 0; const LayerSpec& layer : model.pattern) {
    layers.push_back({cost_of(layer, model.hidden_size), counts[i++],
                      mixer_memory(plan, layer.mixer, padded, element_bytes, cuda)});
    if (const MixtureOfExpertsSpec* experts = experts_of(layer)) {
      layers.back().casts = expert_casts(*experts, model.hidden_size);
    }
    const auto net = std::visit([](const auto& x) { return recurrence_in(x); }, layer.mixer);
    if (net) add_rule(layers.back(), *net, plan, padded, element_bytes);
  }
  return layers;
}

}  // namespace longspan
