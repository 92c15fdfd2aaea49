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
#include "longspan/rollouts/reward_command.h"
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

std::vector<double> by_command(const std::string& command, const std::vector<JudgedAnswer>& answers,
                               int64_t timeout) {
  std::string input;
  for (const JudgedAnswer& answer : answers) {
    const nlohmann::ordered_json line = {{"prompt", answer.prompt},
                                         {"completion", answer.answer},
                                         {"solution", answer.solution},
                                         {"num_tokens", answer.num_tokens},
                                         {"truncated", answer.is_truncated}};
    input += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  std::istringstream lines(output_of(command, input, timeout));
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

std::vector<double> rewards_by(const std::string& name, const std::vector<JudgedAnswer>& answers,
                               const std::string& command, int64_t timeout, int64_t max_length) {
  if (name == "command") return by_command(command, answers, timeout);
  std::vector<double> rewards;
  for (const JudgedAnswer& answer : answers) {
    if (name == "exact_match") {
      rewards.push_back(without_space(answer.answer) == without_space(answer.solution) ? 1 : 0);
    } else if (name == "number") {
      rewards.push_back(last_number(answer.answer) == last_number(answer.solution) ? 1 : 0);
    } else if (name == "length") {
      rewards.push_back(-static_cast<double>(answer.num_tokens) / static_cast<double>(max_length));
    } else {
      throw std::logic_error("a reward function of no kind");
    }
  }
  return rewards;
}

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

Rewards::Rewards(const PolicySettings& settings)
    : command_(settings.reward_command),
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
    if (std::ranges::find(kRewardNames, names[i]) == std::end(kRewardNames)) {
      throw UserError(fmt::format("rewards: there is no {}; the reward functions are: {}",
                                  shortened(names[i], 40), fmt::join(kRewardNames, ", ")));
    }
    if (!weights_.emplace(names[i], weights.empty() ? 1.0 : weight_from(weights[i])).second) {
      throw UserError(fmt::format("rewards names {} twice; remove one", names[i]));
    }
  }
  if (weights_.contains("command") != !command_.empty()) {
    throw UserError("rewards: command and reward_command belong together; give both or none");
  }
}

std::vector<std::map<std::string, double>> Rewards::of(
    const std::vector<JudgedAnswer>& answers) const {
  std::vector<std::map<std::string, double>> result(answers.size());
  for (const auto& [name, weight] : weights_) {
    const std::vector<double> rewards = rewards_by(name, answers, command_, timeout_, max_length_);
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
