#include "longspan/rollouts/rollout_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/number_text.h"
#include "longspan/data/bad_rows.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/rollouts/rollout_check.h"
#include "longspan/rollouts/rollout_text.h"
#include "longspan/text/counted.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

using nlohmann::json;

const std::vector<std::string> kFields = {
    "id",           "group",    "parent",     "token_ids", "mask",           "prompt_ids",
    "reward",       "rewards",  "advantage",  "logprobs",  "completion_ids", "teacher_logprobs",
    "prompt",       "messages", "completion", "tools",     "policy_version", "truncated",
    "finish_reason"};

/// The fields of the three forms of a rollout's tokens. A rollout has the fields of one form.
struct TokenForm {
  const char* name;  // the field that decides
  std::vector<const char*> others;
};
const TokenForm kForms[] = {{"token_ids", {"mask"}},
                            {"completion_ids", {"prompt_ids"}},
                            {"completion", {"prompt", "messages", "tools"}}};

/// Reads the fields of one line.
class LineParser {
 public:
  LineParser(const json& row, std::string_view line, const RolloutRules& rules, Rollout& rollout)
      : row_(row, rollout.source), line_(line), rules_(rules), rollout_(rollout) {}

  void parse() {
    for (const auto& item : row_.json().items()) {
      if (std::ranges::find(kFields, item.key()) != kFields.end()) continue;
      fail(fmt::format("{} is no field of a rollout; {}", shortened(item.key(), 60),
                       suggestion(item.key(), kFields, "field")));
    }
    rollout_.group = name("group");
    if (row_.has("id")) rollout_.id = name("id");
    if (row_.has("parent")) rollout_.parent = name("parent");
    read_end();
    read_tokens();
    rollout_.logprobs = logprobs("logprobs");
    rollout_.teacher_logprobs = logprobs("teacher_logprobs");
    read_rewards();
    read_advantage();
    if (row_.has("policy_version")) {
      rollout_.policy_version = row_.whole("policy_version", 0, kMostCounted);
    }
    check_rollout(rollout_, rules_.vocab_size);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw RowError(fmt::format("{}: {}", rollout_.source, problem));
  }

  std::string name(const char* key) const {
    const json& value = row_.value(key);
    if (value.is_number_integer()) return value.dump();
    if (!value.is_string()) fail(fmt::format("{} must be a text or a whole number", key));
    if (value.get_ref<const std::string&>().empty()) fail(fmt::format("{} is empty", key));
    return value.get<std::string>();
  }

  void read_end() {
    rollout_.is_truncated = row_.get<bool>("truncated", false);
    if (!row_.has("finish_reason")) return;
    const auto reason = row_.get<std::string>("finish_reason");
    if (reason != "length" && reason != "stop" && reason != "tool_calls") {
      fail(fmt::format("finish_reason is \"{}\"; known are length (truncated), stop and tool_calls",
                       shortened(reason, 60)));
    }
    const bool is_truncated = reason == "length";
    if (row_.has("truncated") && rollout_.is_truncated != is_truncated) {
      fail(fmt::format("truncated is {}, and finish_reason is \"{}\"; remove one of the two",
                       rollout_.is_truncated, reason));
    }
    rollout_.is_truncated = is_truncated;
  }

  bool is_text() const { return row_.has("completion"); }

  void read_tokens() {
    const TokenForm* given = nullptr;
    for (const TokenForm& form : kForms) {
      if (row_.has(form.name)) given = &form;
    }
    if (given == nullptr) {
      fail(
          "there are no tokens; give token_ids and mask, prompt_ids and completion_ids, or prompt "
          "and completion");
    }
    for (const TokenForm& form : kForms) {
      if (&form == given) continue;
      if (row_.has(form.name)) refuse_beside(form.name, given->name);
      for (const char* other : form.others) {
        if (row_.has(other)) refuse_beside(other, given->name);
      }
    }
    if (is_text()) {
      if (!rollout_.parent.empty()) {
        fail("parent belongs to token ids; give the whole conversation in messages, or token_ids");
      }
      encode_text_rollout(parse_ordered_json(line_, rollout_.source), rules_, rollout_);
    } else if (row_.has("token_ids")) {
      rollout_.token_ids = ids("token_ids");
      rollout_.mask = mask();
    } else {
      rollout_.token_ids = ids("prompt_ids");
      rollout_.mask.assign(rollout_.token_ids.size(), false);
      const std::vector<int32_t> answer = ids("completion_ids");
      rollout_.token_ids.insert(rollout_.token_ids.end(), answer.begin(), answer.end());
      rollout_.mask.resize(rollout_.token_ids.size(), true);
    }
  }

  [[noreturn]] void refuse_beside(const char* field, const char* form) const {
    fail(fmt::format("{} stands beside {}; give the tokens in one way", field, form));
  }

  std::vector<int32_t> ids(const char* key) const {
    const json& list = row_.list(key);
    std::vector<int32_t> ids;
    ids.reserve(list.size());
    for (const json& value : list) {
      const std::optional<int64_t> id =
          value.is_number_integer() ? as_whole(value) : std::optional<int64_t>();
      if (!id || *id < 0 || *id >= rules_.vocab_size) {
        fail(
            fmt::format("{}[{}] is {}; wanted is a token id from 0 to {}, the last of the model's "
                        "vocabulary",
                        key, ids.size(), shown_value(value), rules_.vocab_size - 1));
      }
      ids.push_back(static_cast<int32_t>(*id));
    }
    return ids;
  }

  std::vector<bool> mask() const {
    const json& list = row_.list("mask");
    if (list.size() != rollout_.token_ids.size()) {
      fail(fmt::format("mask has {} for {}; wanted is one for each token",
                       counted(std::ssize(list), "value"),
                       counted(std::ssize(rollout_.token_ids), "token")));
    }
    std::vector<bool> mask;
    mask.reserve(list.size());
    for (const json& value : list) {
      if (!value.is_boolean() && value != json(0) && value != json(1)) {
        fail(fmt::format("mask[{}] is {}; wanted is 0, 1, false or true", mask.size(),
                         shown_value(value)));
      }
      mask.push_back(value.is_boolean() ? value.get<bool>() : value == json(1));
    }
    return mask;
  }

  static std::string shown_value(const json& value) {
    return value.is_structured() ? std::string(value.type_name())
                                 : shortened(value.dump(-1, ' ', true), 40);
  }

  double number_at(const char* key, const json& list, size_t i) const {
    if (list[i].is_number()) return list[i].get<double>();
    fail(fmt::format("{}[{}] is {}; wanted is a number", key, i, shown_value(list[i])));
  }

  /// Returns numbers for each token, from a list for each token or for each trained token.
  std::vector<double> of_tokens(const char* key) const {
    const json& list = row_.list(key);
    const size_t num_tokens = rollout_.token_ids.size();
    const auto num_labels = static_cast<size_t>(num_trained(rollout_));
    if (list.size() != num_tokens && list.size() != num_labels) {
      fail(
          fmt::format("{} has {}; wanted is one for each of the {}, or one for each of the {} that "
                      "the mask marks",
                      key, counted(std::ssize(list), "number"),
                      counted(static_cast<int64_t>(num_tokens), "token"), num_labels));
    }
    const bool of_all = list.size() == num_tokens;
    std::vector<double> numbers(num_tokens, 0);
    for (size_t i = 0, label = 0; i < num_tokens; ++i) {
      const size_t at = of_all ? i : label;
      if (rollout_.mask[i]) {
        numbers[i] = number_at(key, list, at);
        ++label;
      } else if (of_all && !list[i].is_null()) {
        number_at(key, list, i);
      }
    }
    return numbers;
  }

  std::vector<double> logprobs(const char* key) const {
    if (!row_.has(key)) return {};
    if (is_text()) refuse_beside_text(key);
    return of_tokens(key);
  }

  [[noreturn]] void refuse_beside_text(const char* key) const {
    fail(
        fmt::format("{} has a number for each token, and the tokens of a text are not known; give "
                    "token_ids and mask",
                    key));
  }

  void read_rewards() {
    if (row_.has("reward")) rollout_.reward = row_.get<double>("reward");
    if (!row_.has("rewards")) return;
    const JsonObject rewards = row_.object("rewards");
    double sum = 0;
    for (const auto& item : rewards.json().items()) {
      if (!item.value().is_number()) {
        fail(fmt::format("the reward \"{}\" is {}; wanted is a number", shortened(item.key(), 60),
                         shown_value(item.value())));
      }
      sum += rollout_.rewards[item.key()] = item.value().get<double>();
    }
    if (rollout_.rewards.empty()) fail("rewards has no number; remove it, or give numbers by name");
    if (!rollout_.reward && rules_.sums_rewards) rollout_.reward = sum;
  }

  void read_advantage() {
    if (!row_.has("advantage")) {
      if (rules_.needs_reward && !rollout_.reward) {
        fail("there is neither reward nor advantage; give one of the two");
      }
      return;
    }
    const json& value = row_.value("advantage");
    if (value.is_array()) {
      if (is_text()) refuse_beside_text("advantage");
      rollout_.advantages = of_tokens("advantage");
      return;
    }
    const auto advantage = row_.get<double>("advantage");
    for (const bool is_trained : rollout_.mask) {
      rollout_.advantages.push_back(is_trained ? advantage : 0);
    }
  }

  JsonObject row_;
  std::string_view line_;
  const RolloutRules& rules_;
  Rollout& rollout_;
};

/// Parses a line. The text may break JSON's rules or give a field twice.
json parse_fields(std::string_view line, const std::string& path, int64_t number,
                  const std::string& place) {
  try {
    return parse_json_of_single_keys(line, place);
  } catch (const UserError&) {
    parse_json(line, path, number);  // broken JSON: throws with the number of the line in the file
    throw;
  }
}

/// The values of trained tokens.
std::vector<double> of_labels(const Rollout& rollout, const std::vector<double>& values) {
  std::vector<double> labels;
  for (size_t i = 0; i < values.size(); ++i) {
    if (rollout.mask[i]) labels.push_back(values[i]);
  }
  return labels;
}

}  // namespace

Rollout parse_rollout(std::string_view line, const std::string& path, int64_t number,
                      const RolloutRules& rules) {
  Rollout rollout;
  rollout.source = fmt::format("{}, line {}", path, number);
  const json row = parse_fields(line, path, number, rollout.source);
  LineParser(row, line, rules, rollout).parse();
  return rollout;
}

std::string write_rollout(const Rollout& rollout) {
  check_rollout(rollout, kMostIndexed);
  nlohmann::ordered_json row;
  if (!rollout.id.empty()) row["id"] = rollout.id;
  row["group"] = rollout.group;
  if (!rollout.parent.empty()) row["parent"] = rollout.parent;
  row["token_ids"] = rollout.token_ids;
  row["mask"] = std::vector<int>(rollout.mask.begin(), rollout.mask.end());
  const auto put = [&](const char* key, const std::vector<double>& values) {
    if (!values.empty()) row[key] = of_labels(rollout, values);
  };
  put("logprobs", rollout.logprobs);
  put("teacher_logprobs", rollout.teacher_logprobs);
  if (rollout.reward) row["reward"] = *rollout.reward;
  if (!rollout.rewards.empty()) row["rewards"] = rollout.rewards;
  put("advantage", rollout.advantages);
  if (rollout.policy_version) row["policy_version"] = *rollout.policy_version;
  if (rollout.is_truncated) row["truncated"] = true;
  return row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace longspan
