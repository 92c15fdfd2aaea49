#include "longspan/rollouts/environment.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr size_t kLongestReply = size_t{16} << 20;

nlohmann::ordered_json name_of(EndOfTurns end) {
  switch (end) {
    case EndOfTurns::kNone:
      return nullptr;
    case EndOfTurns::kTruncated:
      return "truncated";
    case EndOfTurns::kTurns:
      return "max_turns";
    case EndOfTurns::kLength:
      return "cutoff_len";
  }
  throw std::logic_error("an end of no kind");
}

std::string line_of(const EnvironmentAnswer& answer) {
  const nlohmann::ordered_json line = {{"id", answer.id},         {"turn", answer.turn},
                                       {"prompt", answer.prompt}, {"solution", answer.solution},
                                       {"answer", answer.answer}, {"end", name_of(answer.end)}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Returns the problem of a line; "" if `reply` has its content.
std::string parse_reply(const std::string& line, const EnvironmentAnswer& answer,
                        EnvironmentReply& reply) {
  const std::optional<nlohmann::json> parsed = try_parse_json(line);
  const std::string got = fmt::format("for answer {} the line {}", answer.id, shortened(line, 120));
  if (!parsed || !parsed->is_object()) return got + ", which is no JSON object";
  const nlohmann::json& object = *parsed;
  if (object.size() == 1 && object.contains("reward")) {
    if (!object["reward"].is_number() || !std::isfinite(object["reward"].get<double>())) {
      return got + ", whose reward is not a finite number";
    }
    reply.reward = object["reward"].get<double>();
    return "";
  }
  const bool goes_on = object.size() == 2 && object.contains("observation") &&
                       object.contains("role") && object["observation"].is_string() &&
                       (object["role"] == "tool" || object["role"] == "user");
  if (!goes_on) {
    return got +
           "; wanted is {\"reward\": NUMBER} or {\"observation\": TEXT, \"role\": \"tool\"} "
           "(or \"user\")";
  }
  if (answer.end != EndOfTurns::kNone) {
    return got + fmt::format(", but the conversation has ended ({}); wanted is a reward",
                             name_of(answer.end).get<std::string>());
  }
  reply.observation = object["observation"].get<std::string>();
  reply.role = object["role"].get<std::string>();
  return "";
}

}  // namespace

Environment::Environment(const std::string& command, int64_t timeout)
    : command_(command), timeout_(timeout), process_(std::make_unique<ChildProcess>(command)) {}

Environment::~Environment() {
  process_->end_input();
  for (int i = 0; i < 20 && !process_->has_ended(); ++i) {
    process_->exchange(std::chrono::milliseconds(100));
  }
}

void Environment::fail(const std::string& problem) {
  const std::string& said = process_->errors();
  throw UserError(fmt::format("environment_command {}: {}{}{}", shortened(command_, 120), problem,
                              said.empty() ? "" : ":\n", said));
}

std::optional<std::vector<EnvironmentReply>> Environment::replies(
    const std::vector<EnvironmentAnswer>& answers, const std::function<bool()>& stops) {
  std::string& output = process_->output();
  process_->exchange(std::chrono::milliseconds(0));
  if (!output.empty()) {
    fail("wrote a line without an answer to reply to: " + shortened(output, 120));
  }
  for (const EnvironmentAnswer& answer : answers) process_->write(line_of(answer));
  std::vector<EnvironmentReply> replies;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_);
  for (;;) {
    for (size_t end = 0; (end = output.find('\n')) != std::string::npos; output.erase(0, end + 1)) {
      const std::string line = output.substr(0, end);
      if (replies.size() == answers.size()) break;
      const EnvironmentAnswer& answer = answers[replies.size()];
      if (const std::string problem = parse_reply(line, answer, replies.emplace_back());
          !problem.empty()) {
        fail("wrote " + problem);
      }
    }
    if (replies.size() == answers.size()) return replies;
    if (output.size() > kLongestReply) fail("wrote a line of more than 16 MiB");
    if (process_->has_ended()) {
      const std::string status = process_->status();
      fail(fmt::format("ended{}, with {} of {} replies written",
                       status.empty() ? "" : " (it " + status + ")", replies.size(),
                       answers.size()));
    }
    if (std::chrono::steady_clock::now() >= until) {
      fail(fmt::format("has written {} of {} replies after {} s (reward_timeout); it was killed",
                       replies.size(), answers.size(), timeout_));
    }
    if (stops && stops()) return std::nullopt;
    process_->exchange(std::chrono::milliseconds(200));
  }
}

}  // namespace longspan
