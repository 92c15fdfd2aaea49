#include "longspan/train/server_answers.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/rollouts/api_key.h"
#include "longspan/rollouts/user_command.h"

namespace longspan {
namespace {

/// A server must not stay paused when the run ends, and may be gone.
constexpr auto kResumeTime = std::chrono::seconds(5);

/// Returns a text that no other start of a run has.
std::string name_of_start(const std::string& url) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const auto ticks = std::chrono::steady_clock::now().time_since_epoch().count();
  return fmt::format("longspan-{:08x}", fnv1a(fmt::format("{} {} {}", url, now, ticks)) >> 32);
}

Answer answer_of(Completion completion) {
  Answer answer{.tokens = std::move(completion.token_ids),
                .reason = completion.has_end ? FinishReason::kStop : FinishReason::kLength,
                .logprobs = std::move(completion.logprobs)};
  if (completion.has_end) {
    answer.end_token = answer.tokens.back();
    answer.tokens.pop_back();
  }
  return answer;
}

}  // namespace

ServerAnswers::ServerAnswers(Parts parts)
    : parts_(std::move(parts)),
      kind_(server_kind_named(parts_.run.policy.rollout_server)),
      way_(update_way_named(parts_.run.policy.rollout_update.value())),
      client_(
          parts_.run.policy.rollout_url, parts_.run.policy.rollout_concurrency,
          parts_.run.policy.rollout_timeout,
          // Rank 0 alone talks to the server.
          parts_.run.world.rank() == 0 ? api_key_in(parts_.run.policy.rollout_api_key_env) : ""),
      adapters_(name_of_start(parts_.run.policy.rollout_url)) {}

std::string ServerAnswers::adapter_of(int64_t version) const {
  return fmt::format("{}-{}", adapters_, version);
}

bool ServerAnswers::names_versions() const {
  return way_ == UpdateWay::kLora || (way_ == UpdateWay::kDisk && kind_.loads_beside);
}

int64_t ServerAnswers::update(int64_t policy_version) {
  if (way_ == UpdateWay::kNone) return 0;
  const PolicySettings& policy = parts_.run.policy;
  const int64_t batch = policy_version / policy.num_iterations;
  if (!told_.empty() && batch % policy.rollout_update_steps != 0) return told_.back().version;
  const std::string path = parts_.folders->write(policy_version);
  all_or_none_patiently(parts_.run.world, parts_.run.notices, [&] {
    if (parts_.run.world.rank() != 0) return;
    const Waiting waiting{.stops = parts_.run.stops,
                          .say = [&](const std::string& line) { parts_.run.events.say(line); }};
    if (tell(policy_version, path, waiting)) remove_unused(batch, waiting);
  });
  told_.push_back({batch, policy_version});
  return policy_version;
}

bool ServerAnswers::tell(int64_t version, const std::string& path, const Waiting& waiting) const {
  switch (way_) {
    case UpdateWay::kNone:
      return true;
    case UpdateWay::kLora: {
      const nlohmann::json body = {{"lora_name", adapter_of(version)}, {"lora_path", path}};
      try {
        return client_.post(kind_.load_adapter, body.dump(), kind_.remedy, waiting);
      } catch (const UserError&) {
        // A request whose answer was lost is refused when it is repeated. Names are of this start.
        if (!client_.lists(kind_.models, adapter_of(version), waiting.stops)) throw;
        return true;
      }
    }
    case UpdateWay::kDisk:
    case UpdateWay::kCommand:
      return change_in_place(version, path, waiting);
  }
  throw std::logic_error("an unknown way to update a server");
}

bool ServerAnswers::change_in_place(int64_t version, const std::string& path,
                                    const Waiting& waiting) const {
  const auto post = [&](std::string_view where, const std::string& json = "") {
    return where.empty() || client_.post(where, json, kind_.remedy, waiting);
  };
  const auto change = [&] {
    if (way_ == UpdateWay::kDisk) {
      nlohmann::json body;
      body[nlohmann::json::json_pointer(std::string(kind_.load_field))] = path;
      return post(kind_.unload_models) && post(kind_.load_model, body.dump());
    }
    return output_of({.key = "rollout_update_command",
                      .command = parts_.run.policy.rollout_update_command,
                      .seconds = client_.seconds(),
                      .timeout_key = "rollout_timeout",
                      .environment = {{"LONGSPAN_PATH", path},
                                      {"LONGSPAN_VERSION", std::to_string(version)}},
                      .may_leave_processes = true},
                     "", waiting.stops)
        .has_value();
  };
  if (!post(kind_.pause)) {
    resume();  // the request may have arrived
    return false;
  }
  bool is_changed = false;
  try {
    is_changed = change() && post(kind_.reset_cache);
  } catch (...) {
    // The first error is the one to report.
    try {
      resume();
    } catch (const UserError&) {
    }
    throw;
  }
  if (is_changed) return post(kind_.resume);
  resume();
  return false;
}

void ServerAnswers::resume() const {
  if (kind_.resume.empty()) return;
  const auto until = std::chrono::steady_clock::now() + kResumeTime;
  client_.post(kind_.resume, "", kind_.remedy,
               {.stops = [&] { return std::chrono::steady_clock::now() > until; },
                .say = [](const std::string&) {}});
}

bool ServerAnswers::remove_unused(int64_t batch, const Waiting& waiting) {
  // Batches from `batch` on were begun async_steps batches ago at the earliest, with the weights of
  // that time. Weights in place are replaced already.
  const int64_t oldest = names_versions() ? batch - parts_.run.policy.async_steps : batch;
  while (!told_.empty()) {
    const int64_t next = told_.size() > 1 ? told_[1].batch : batch;
    if (next > oldest) return true;
    if (way_ == UpdateWay::kLora) {
      const nlohmann::json body = {{"lora_name", adapter_of(told_.front().version)}};
      if (!client_.post(kind_.unload_adapter, body.dump(), kind_.remedy, waiting)) return false;
    }
    parts_.folders->remove(told_.front().version);
    told_.pop_front();
  }
  return true;
}

std::optional<std::vector<Answer>> ServerAnswers::answers(const AskedPrompts& asked,
                                                          const Waiting& waiting) {
  const PolicySettings& policy = parts_.run.policy;
  const bool is_folder = way_ == UpdateWay::kDisk && kind_.loads_beside;
  const CompletionRules rules{
      .kind = kind_,
      .model = is_folder ? parts_.folders->absolute_path_of(asked.policy_version) : parts_.model,
      .adapter = way_ == UpdateWay::kLora ? adapter_of(asked.policy_version) : "",
      .max_length = policy.max_completion_length,
      .temperature = policy.rollout_temperature,
      .end_tokens = parts_.end_tokens,
      .vocab_size = parts_.vocab_size,
      .tokenizer = parts_.tokenizer,
      .end_of_text = parts_.end_of_text};
  auto completions = client_.answers(rules, asked.prompts, asked.count, asked.seed, waiting);
  if (!completions) return std::nullopt;
  std::vector<Answer> answers;
  for (std::vector<Completion>& of_prompt : *completions) {
    for (Completion& completion : of_prompt) answers.push_back(answer_of(std::move(completion)));
  }
  return answers;
}

}  // namespace longspan
