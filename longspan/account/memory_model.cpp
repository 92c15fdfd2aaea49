#include "longspan/account/memory_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "longspan/account/step_peak.h"
#include "longspan/account/step_phases.h"
#include "longspan/account/tower_memory.h"
#include "longspan/spec/device_sizes.h"

namespace longspan {
namespace {

int64_t ceil_div(int64_t bytes, int64_t parts) { return (bytes + parts - 1) / parts; }

/// How the run shards its states over ranks.
struct Division {
  explicit Division(const MemoryFacts& memory_facts)
      : facts(memory_facts), ranks(std::max<int64_t>(1, facts.shard_size)) {}

  /// Returns the number of shards of states that are sharded from this stage of ZeRO on.
  int64_t parts(int64_t from_stage) const { return facts.zero_stage >= from_stage ? ranks : 1; }
  /// Returns this rank's bytes of trained states. Distributed experts are sharded over fewer ranks.
  int64_t share_of(int64_t all, int64_t of_experts) const {
    const int64_t expert_parts = parts(1) > 1 ? facts.expert_shard_size : 1;
    return ceil_div(all - of_experts, parts(1)) + ceil_div(of_experts, expert_parts);
  }
  std::string described(int64_t from_stage) const {
    return parts(from_stage) > 1 ? fmt::format("1/{} of {}", ranks, "all") : std::string();
  }
  bool gathers_parameters() const {
    return facts.zero_stage >= 3 && (ranks > 1 || facts.offload_params);
  }
  /// The gradient sum of a share lives where its masters live.
  bool sums_on_host() const {
    return facts.offload_optimizer || (gathers_parameters() && facts.offload_params);
  }
  GradientSums sums() const {
    const bool at_once = facts.zero_stage >= 2 || facts.sums_units,
               of_last_row = at_once && facts.zero_stage < 2;
    const int64_t all = facts.trained_parameter_bytes,
                  own = at_once ? share_of(all, facts.trained_expert_bytes) : all;
    return {.ranks = parts(at_once ? 1 : 2),
            .at_once = at_once,
            .whole_bytes = of_last_row ? all : 0,
            .on_host = sums_on_host(),
            .added = facts.accumulates && !of_last_row,
            .reduction = facts.reduction,
            .device_bytes = at_once && sums_on_host() ? 0 : own,
            .bucket_bytes = facts.bucket_bytes,
            .widens = facts.widens_sums};
  }

  const MemoryFacts& facts;
  int64_t ranks;
};

using Lines = std::vector<MemoryAccount::Line>;

void add_parameters(const MemoryFacts& facts, const Division& division, Lines& lines) {
  const int64_t held = ceil_div(facts.parameter_bytes, division.parts(3));
  const std::string how = division.described(3);
  if (facts.held_on_device >= 0) {
    lines.push_back({"Parameters", facts.held_on_device, facts.held_on_host, how});
  } else {
    lines.push_back(
        {"Parameters", facts.offload_params ? 0 : held, facts.offload_params ? held : 0, how});
  }
  if (facts.largest_unpacked > 0) {
    lines.push_back(
        {"  unpacked", facts.largest_unpacked, 0, "quantized matrices of the unit at work"});
  }
  if (!division.gathers_parameters()) return;
  // A share on the host is copied to the device while the next unit is gathered from it. With one
  // rank, the copy is used directly.
  const bool is_sent = facts.offload_params && division.ranks > 1;
  const int64_t sent = is_sent ? ceil_div(facts.largest_unit_bytes, division.ranks) : 0;
  lines.push_back(
      {"  gathered", 2 * facts.largest_unit_bytes + sent, 0, "the unit at work and the next"});
}

void add_gradients(const MemoryFacts& facts, const Division& division, Lines& lines) {
  const GradientSums sums = division.sums();
  const bool on_host = sums.on_host;
  const int64_t share =
      division.share_of(facts.trained_parameter_bytes, facts.trained_expert_bytes);
  // On a GPU, a unit's part of a sum on the host exists there until the copy has ended.
  const int64_t landing =
      on_host && facts.cuda ? ceil_div(facts.largest_unit_gradient_bytes, division.parts(1)) : 0;
  const bool are_whole = sums.whole_bytes > 0 && facts.accumulates;
  if (are_whole || !sums.at_once) {
    lines.push_back(
        {"Gradients", std::max(sums.whole_bytes, sums.device_bytes), on_host ? share : 0, ""});
    if (landing > 0) lines.push_back({"  of a unit", 0, landing, "on its way to the host"});
    return;
  }
  lines.push_back({"Gradients", sums.device_bytes, on_host ? share : 0, division.described(1)});
  const int64_t unit = facts.largest_unit_gradient_bytes;
  // A unit's part of a sum is on the device first, as are the received parts.
  lines.push_back({"  of units", gradients_under_way(sums, facts.cuda, unit, unit, unit), landing,
                   "made, on their way, and received from others"});
}

void add_states(const MemoryFacts& facts, const Division& division, Lines& lines) {
  const auto state_bytes = [&](int64_t num_trained) {
    return std::llround(static_cast<double>(num_trained) * facts.optimizer_bytes) +
           num_trained * facts.master_bytes;
  };
  const int64_t states =
      division.share_of(state_bytes(facts.num_trained), state_bytes(facts.num_trained_of_experts));
  lines.push_back({"Optimizer", facts.offload_optimizer ? 0 : states,
                   facts.offload_optimizer ? states : 0, division.described(1)});
  if (facts.reference_on_device + facts.reference_on_host > 0) {
    lines.push_back({"Reference model", facts.reference_on_device, facts.reference_on_host,
                     division.described(3)});
  }
  if (facts.saved_copy_bytes > 0) {
    lines.push_back({"Copy to save", 0, facts.saved_copy_bytes, "while it is written"});
  }
}

/// Pixels are read into host memory, which is the device's on a CPU.
void add_pixels(const MemoryFacts& facts, Lines& lines) {
  if (facts.tower.num_patches == 0) return;
  const auto bytes = static_cast<int64_t>(tower_memory(facts).pixels);
  lines.push_back({"Pixels", facts.cuda ? 0 : bytes, facts.cuda ? bytes : 0, "read ahead"});
}

/// Corrects the sum of the lines to the peak.
void add_peak_correction(const MemoryFacts& facts, const Division& division, int64_t always,
                         Lines& lines) {
  const int64_t there = step_peak_bytes(facts, division.sums());
  if (there == 0) return;
  int64_t all = -always;
  for (const MemoryAccount::Line& line : lines) all += line.device;
  if (there < all) {
    lines.push_back({"Never at once", there - all, 0,
                     facts.reference ? "the reference's pass is before the row's; gradients are "
                                       "made while activations go"
                                     : "gradients are made while activations go"});
  } else if (there > all) {
    lines.push_back({"At the peak", there - all, 0, "beside all of these"});
  }
}

/// Returns the bytes per token of saved, kept and temporary activations.
double add_activations(const MemoryFacts& facts, Lines& lines) {
  const TokenBytes tokens = token_bytes(facts);
  const auto row = static_cast<double>(ceil_div(facts.num_tokens, facts.sequence_size));
  const StepPhase phase = peak_phase(facts);
  lines.push_back({"Activations saved", static_cast<int64_t>(tokens.saved * row),
                   facts.in_file ? 0 : static_cast<int64_t>(tokens.on_host * row),
                   fmt::format("{:.1f} KiB a token{}",
                               (facts.offload_activations ? tokens.on_host : tokens.saved) / 1024,
                               facts.in_file ? ", in offload_folder" : "")});
  if (tokens.kept > 0) {
    int64_t kept = 0, all = 0;
    for (const MemoryFacts::Layers& layers : facts.layers) {
      kept += layers.kept;
      all += layers.count;
    }
    lines.push_back(
        {"  kept of MLPs", static_cast<int64_t>(tokens.kept * row), 0,
         fmt::format("{:.1f} KiB a token, of {} of {} layers", tokens.kept / 1024, kept, all)});
  }
  if (facts.tower.num_patches > 0) {
    const TowerMemory tower = tower_memory(facts);
    lines.push_back({"  of the tower", static_cast<int64_t>(tower.saved + tower.features),
                     static_cast<int64_t>(tower.saved_on_host),
                     fmt::format("saved, and features, of {} patches", facts.tower.num_patches)});
  }
  lines.push_back({"  worked with", static_cast<int64_t>(tokens.working * row), 0,
                   fmt::format("{:.1f} KiB a token, in {}", tokens.working / 1024, phase.name)});
  if (facts.reference) {
    lines.push_back({"Reference's pass", reference_pass_bytes(facts), 0,
                     facts.divergence.is_computed ? "of each row, before the row's own"
                                                  : "of each row, before the step's first loss"});
  }
  lines.push_back({"Buffers",
                   static_cast<int64_t>(phase.fixed) + device_sizes(facts.cuda).workspace_bytes, 0,
                   "whatever the row"});
  return tokens.saved + tokens.kept + tokens.working;
}

}  // namespace

MemoryAccount account_of(const MemoryFacts& facts) {
  MemoryAccount account;
  const Division division(facts);
  add_parameters(facts, division, account.lines);
  int64_t always = account.lines.front().device;
  add_gradients(facts, division, account.lines);
  const size_t first_state = account.lines.size();
  add_states(facts, division, account.lines);
  add_pixels(facts, account.lines);
  for (size_t i = first_state; i < account.lines.size(); ++i) always += account.lines[i].device;
  account.activation_bytes_per_token = add_activations(facts, account.lines);
  add_peak_correction(facts, division, always, account.lines);
  for (const MemoryAccount::Line& line : account.lines) {
    account.device += line.device;
    account.host += line.host;
  }
  const DeviceSizes& sizes = device_sizes(facts.cuda);
  account.beside_tensors = sizes.context_bytes + facts.num_groups * sizes.group_bytes;
  if (account.beside_tensors > 0) {
    account.lines.push_back({"Beside tensors", account.beside_tensors, 0,
                             facts.num_groups > 0 ? "the driver and NCCL" : "the driver"});
  }
  return account;
}

}  // namespace longspan
