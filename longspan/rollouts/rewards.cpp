#include "longspan/rollouts/rewards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/rollouts/http.h"
#include "longspan/rollouts/user_command.h"
#include "longspan/settings/policy_settings.h"
#include "longspan/text/counted.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view without_space(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

double weight_from(const std::string& text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(weight)) {
    return weight;
  }
  throw UserError(fmt::format("reward_weights: {} is not a number", shortened(text, 40)));
}

/// The settings of all reward functions.
struct RewardFacts {
  const std::string &command, &url;
  const std::optional<WholeMatch>& format;
  int64_t timeout;     // seconds
  int64_t max_length;  // tokens of an answer
  const std::function<bool()>& stops;
};
using Answers = std::vector<JudgedAnswer>;
using Numbers = std::optional<std::vector<double>>;  // nullopt: `stops` returned true

nlohmann::ordered_json json_of(const JudgedAnswer& answer) {
  return {{"prompt", answer.prompt},
          {"completion", answer.answer},
          {"solution", answer.solution},
          {"num_tokens", answer.num_tokens},
          {"truncated", answer.is_truncated}};
}

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Returns the value of `judge` for each answer.
template <typename Judge>
std::vector<double> for_each(const Answers& answers, Judge judge) {
  std::vector<double> rewards;
  for (const JudgedAnswer& answer : answers) rewards.push_back(static_cast<double>(judge(answer)));
  return rewards;
}

Numbers exact_match(const Answers& answers, const RewardFacts&) {
  return for_each(answers, [](const JudgedAnswer& answer) {
    return without_space(answer.answer) == without_space(answer.solution);
  });
}

Numbers same_number(const Answers& answers, const RewardFacts&) {
  return for_each(answers, [](const JudgedAnswer& answer) {
    return last_number(answer.answer) == last_number(answer.solution);
  });
}

Numbers by_length(const Answers& answers, const RewardFacts& facts) {
  return for_each(answers, [&](const JudgedAnswer& answer) {
    return -static_cast<double>(answer.num_tokens) / static_cast<double>(facts.max_length);
  });
}

Numbers by_format(const Answers& answers, const RewardFacts& facts) {
  return for_each(answers,
                  [&](const JudgedAnswer& answer) { return facts.format->matches(answer.answer); });
}

Numbers by_command(const Answers& answers, const RewardFacts& facts) {
  std::string input;
  for (const JudgedAnswer& answer : answers) input += text_of(json_of(answer)) + "\n";
  std::optional<std::string> output = output_of({.key = "reward_command",
                                                 .command = facts.command,
                                                 .seconds = static_cast<double>(facts.timeout),
                                                 .timeout_key = "reward_timeout"},
                                                input, facts.stops);
  if (!output) return std::nullopt;
  std::istringstream lines(*std::move(output));
  std::vector<double> rewards;
  for (std::string line; std::getline(lines, line);) {
    if (without_space(line).empty()) continue;
    const auto place = fmt::format("reward_command, line {}", rewards.size() + 1);
    const auto object = parse_json(line, place);
    const auto reward = object.is_object() ? object.find("reward") : object.end();
    if (!object.is_object() || reward == object.end() || !reward->is_number()) {
      throw UserError(
          fmt::format("{}: {}; wanted is {{\"reward\": NUMBER}}", place, shortened(line, 80)));
    }
    rewards.push_back(reward->get<double>());
  }
  return rewards;
}

Numbers by_http(const Answers& answers, const RewardFacts& facts) {
  auto list = nlohmann::ordered_json::array();
  for (const JudgedAnswer& answer : answers) list.push_back(json_of(answer));
  const std::string place = "reward_url " + facts.url;
  std::optional<std::string> body;
  try {
    body = body_of({.url = facts.url, .json = text_of(list)},
                   {.total_seconds = static_cast<double>(facts.timeout)}, facts.stops);
  } catch (const UserError& error) {
    throw UserError(
        fmt::format("reward_url {} (reward_timeout: {} s)", error.what(), facts.timeout));
  }
  if (!body) return std::nullopt;
  auto answer = parse_json(*body, place);
  if (answer.is_object() && answer.contains("rewards")) answer = answer["rewards"];
  const auto is_number = [](const auto& value) { return value.is_number(); };
  if (!answer.is_array() || !std::ranges::all_of(answer, is_number)) {
    throw UserError(
        fmt::format("{}: {}; wanted is a list of numbers", place, shortened(*body, 80)));
  }
  return answer.template get<std::vector<double>>();
}

Numbers by_environment(const Answers& answers, const RewardFacts&) {
  return for_each(answers, [](const JudgedAnswer& answer) { return answer.environment.value(); });
}

struct RewardFunction {
  std::string_view name;
  std::string_view key;  // of its setting; empty: none
  std::string PolicySettings::* setting;
  Numbers (*rewards)(const Answers&, const RewardFacts&);
};

/// The register, in the order of the help.
constexpr RewardFunction kRewardFunctions[] = {
    {"exact_match", "", nullptr, exact_match},
    {"number", "", nullptr, same_number},
    {"length", "", nullptr, by_length},
    {"command", "reward_command", &PolicySettings::reward_command, by_command},
    {"format", "reward_format", &PolicySettings::reward_format, by_format},
    {"http", "reward_url", &PolicySettings::reward_url, by_http},
    {"environment", "environment_command", &PolicySettings::environment_command, by_environment},
};

}  // namespace

double last_number(std::string_view text) {
  double last = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      ++i;
      continue;
    }
    std::string number;
    if (i > 0 && text[i - 1] == '-' && (i == 1 || !is_digit(text[i - 2]))) number = "-";
    bool has_point = false;
    for (; i < text.size(); ++i) {
      const bool before_digit = i + 1 < text.size() && is_digit(text[i + 1]);
      if (is_digit(text[i])) {
        number += text[i];
      } else if (text[i] == '.' && before_digit && !has_point) {
        number += '.';
        has_point = true;
      } else if (text[i] != ',' || !before_digit || has_point) {
        break;
      }
    }
    std::from_chars(number.data(), number.data() + number.size(), last);
  }
  return last;
}

std::vector<std::string_view> names_of_rewards() {
  std::vector<std::string_view> names;
  for (const RewardFunction& function : kRewardFunctions) names.push_back(function.name);
  return names;
}

Rewards::Rewards(const PolicySettings& settings)
    : command_(settings.reward_command),
      url_(settings.reward_url),
      timeout_(settings.reward_timeout),
      max_length_(settings.max_completion_length) {
  const std::vector<std::string> names = split_names(settings.rewards),
                                 weights = split_names(settings.reward_weights);
  if (names.empty()) throw UserError("rewards is missing: give the names of reward functions");
  if (!weights.empty() && weights.size() != names.size()) {
    throw UserError(fmt::format("reward_weights has {}, and rewards has {}; give one for each",
                                counted(std::ssize(weights), "number"),
                                counted(std::ssize(names), "name")));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::ranges::find(kRewardFunctions, names[i], &RewardFunction::name) ==
        std::end(kRewardFunctions)) {
      throw UserError(fmt::format("rewards: there is no {}; the reward functions are: {}",
                                  shortened(names[i], 40), fmt::join(names_of_rewards(), ", ")));
    }
    if (!weights_.emplace(names[i], weights.empty() ? 1.0 : weight_from(weights[i])).second) {
      throw UserError(fmt::format("rewards names {} twice; remove one", names[i]));
    }
  }
  for (const RewardFunction& function : kRewardFunctions) {
    if (function.setting == nullptr) continue;
    const bool has_setting = !(settings.*function.setting).empty();
    if (weights_.contains(std::string(function.name)) == has_setting) continue;
    throw UserError(fmt::format("rewards: {} and {} belong together; give both or none",
                                function.name, function.key));
  }
  if (settings.reward_format.empty()) return;
  try {
    format_.emplace(settings.reward_format);
  } catch (const UserError& error) {
    throw UserError(fmt::format("reward_format: {}", error.what()));
  }
}

std::optional<std::vector<std::map<std::string, double>>> Rewards::of(
    const std::vector<JudgedAnswer>& answers, const std::function<bool()>& stops) const {
  std::vector<std::map<std::string, double>> result(answers.size());
  const RewardFacts facts{.command = command_,
                          .url = url_,
                          .format = format_,
                          .timeout = timeout_,
                          .max_length = max_length_,
                          .stops = stops};
  for (const RewardFunction& function : kRewardFunctions) {
    const std::string name(function.name);
    if (!weights_.contains(name)) continue;
    const Numbers numbers = function.rewards(answers, facts);
    if (!numbers) return std::nullopt;
    const std::vector<double>& rewards = *numbers;
    if (rewards.size() != answers.size()) {
      throw UserError(fmt::format("the reward function {} returned {} for {}", name,
                                  counted(std::ssize(rewards), "reward"),
                                  counted(std::ssize(answers), "answer")));
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!std::isfinite(rewards[i])) {
        throw UserError(fmt::format("the reward function {} returned {} for answer {}: {}", name,
                                    rewards[i], i + 1, shortened(answers[i].answer, 80)));
      }
      result[i][name] = rewards[i];
    }
  }
  return result;
}

}  // namespace longspan
