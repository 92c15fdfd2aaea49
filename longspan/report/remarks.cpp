#include "longspan/report/remarks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "longspan/account/held_parameters.h"
#include "longspan/base/names.h"
#include "longspan/input/json_text.h"
#include "longspan/models/composite.h"
#include "longspan/settings/choices.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// Returns attention_dropout of config.json. Other programs drop attention weights in training,
/// which no fused or distributed attention can reproduce.
double attention_dropout_of(const ModelConfig& config) {
  const nlohmann::json whole = try_parse_json(config.json).value_or(nullptr);
  const nlohmann::json& json = language_keys(whole);
  if (!json.is_object() || !json.contains("attention_dropout")) return 0.0;
  const nlohmann::json& value = json.at("attention_dropout");
  return value.is_number() ? value.get<double>() : 0.0;
}

std::string reason(LeftOut why) {
  switch (why) {
    case LeftOut::kFurtherTokens:
      return "layers that predict further tokens (multi-token prediction) are not trained, and a "
             "saved model is without them";
    case LeftOut::kFrequencies:
      return "rotary frequencies (rotary_emb.inv_freq) follow from config.json, as transformers "
             "computes them";
    case LeftOut::kTiedHead:
      return fmt::format("{} has the embedding's numbers, and is the embedding", kHeadName);
    case LeftOut::kZeroBias:
      return "biases of zeros, of linear layers that have no bias in config.json";
    case LeftOut::kValueHead:
      return "a value head (v_head.*) in adapter_model.safetensors; one is read from "
             "value_head.safetensors";
  }
  throw std::logic_error("a tensor is left out for no reason");
}

}  // namespace

std::vector<std::string> remarks_on_left_out(const std::map<LeftOut, int64_t>& left_out) {
  std::vector<std::string> lines;
  for (const auto& [why, count] : left_out) {
    lines.push_back(fmt::format("{} of the files {} not read: {}.", counted(count, "tensor"),
                                count == 1 ? "is" : "are", reason(why)));
  }
  return lines;
}

std::string remark_on_grace(double seconds_of_checkpoint, double seconds_of_step) {
  constexpr double kDefault = 30;      // Kubernetes' terminationGracePeriodSeconds
  constexpr double kRest = 10;         // for the end of the processes
  constexpr double kSlowerDisk = 1.5;  // the disk may be busier at the time
  const double needed = seconds_of_step + kSlowerDisk * seconds_of_checkpoint + kRest;
  if (needed <= kDefault) return "";
  return fmt::format(
      "note: give this pod a terminationGracePeriodSeconds of at least {2:.0f}: told to end, it "
      "completes its step ({0:.0f} s) and saves a checkpoint ({1:.0f} s).",
      seconds_of_step, seconds_of_checkpoint, std::ceil(needed / 10) * 10);
}

std::string warning_of_timeout(int64_t ddp_timeout) {
  constexpr int64_t kDay = 86400;
  if (ddp_timeout <= kDay) return "";
  return fmt::format(
      "warning: ddp_timeout: {} waits {} for a process that hangs. A process that ends, or is "
      "silent for minutes, is found sooner.",
      ddp_timeout, counted(ddp_timeout / kDay, "day"));
}

std::vector<std::string> remarks_at_start(const RemarkFacts& facts) {
  std::vector<std::string> lines;
  for (const std::string& note : facts.notes) lines.push_back("note: " + note);
  if (std::string text = warning_of_timeout(facts.ddp_timeout); !text.empty()) {
    lines.push_back(std::move(text));
  }
  if (!facts.plan_warning.empty()) lines.push_back("warning: " + facts.plan_warning);
  if (!facts.cuda && facts.num_cores > 0 && facts.local_world_size > facts.num_cores) {
    lines.push_back(fmt::format(
        "warning: {} run on this machine, which has {}: they take turns, and each waits for the "
        "slowest. Start at most {} here (nproc_per_node).",
        counted(facts.local_world_size, "process"), counted(facts.num_cores, "core"),
        facts.num_cores));
  }
  if (facts.num_rows > 0 && facts.rows_per_step > facts.num_rows) {
    lines.push_back(fmt::format(
        "warning: a step would take {}, and the training set has {}: every step is a whole epoch "
        "of these. Lower per_device_train_batch_size or gradient_accumulation_steps for more "
        "steps.",
        counted(facts.rows_per_step, "row"), counted(facts.num_rows, "row")));
  }
  if (copies_vision(facts.model)) {
    lines.push_back(fmt::format(
        "{} is trained on texts alone: its language model learns, and what it sees pictures with "
        "stays as it is.",
        facts.model.architecture));
  }
  std::ranges::move(remarks_on_left_out(facts.left_out), std::back_inserter(lines));
  if (trains_adapter(facts.method) && facts.adapters.empty()) {
    const ModelSpec& model = facts.model.spec;
    const auto names = passed_over(model, lora_shape_of(facts.method, model).modules);
    if (!names.empty()) {
      const bool are_of_experts = experts_of(model)->adapters == MlpAdapters::kExperts;
      lines.push_back(fmt::format(
          "lora_target: adapters of {} are on {} alone, as PEFT has it for {}; {} have none.",
          fmt::join(names, ", "),
          are_of_experts                    ? "the experts that routers choose"
          : experts_of(model)->has_shared() ? "shared experts"
                                            : "dense MLPs",
          facts.model.architecture,
          are_of_experts ? "shared experts and dense MLPs" : "the experts that routers choose"));
    }
  }
  if (const double dropout = attention_dropout_of(facts.model); dropout > 0) {
    lines.push_back(
        fmt::format("config.json has attention_dropout {}; Longspan trains with 0.", dropout));
  }
  if (const auto adapters = split_names(facts.adapters); adapters.size() > 1) {
    lines.push_back(fmt::format(
        "The saved adapter belongs to the model with {} merged into it; `longspan export` writes "
        "that model.",
        fmt::join(adapters.begin(), adapters.end() - 1, ", ")));
  }
  return lines;
}

}  // namespace longspan
