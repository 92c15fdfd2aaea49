#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/text/nearest.h"

namespace longspan {

Options::Options(const std::string& command, const Arguments& arguments,
                 const std::vector<std::string>& names, const std::vector<std::string>& list_names,
                 const std::vector<std::string>& flag_names)
    : command_(command) {
  std::vector<std::string> known = names;
  known.insert(known.end(), list_names.begin(), list_names.end());
  known.insert(known.end(), flag_names.begin(), flag_names.end());
  const auto is_in = [](const std::vector<std::string>& some, const std::string& name) {
    return std::ranges::find(some, name) != some.end();
  };
  std::vector<std::string>* values = nullptr;
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) {
      if (values == nullptr) {
        throw UserError(fmt::format("{}: {} belongs to no option; see `longspan help {}`", command,
                                    argument, command));
      }
      values->push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (!is_in(known, name)) {
      const std::string nearest = nearest_name(name, known);
      throw UserError(fmt::format("{}: there is no option --{}; {}", command, name,
                                  nearest.empty() ? fmt::format("see `longspan help {}`", command)
                                                  : fmt::format("the nearest is --{}", nearest)));
    }
    values = &values_[name];
    if (equals != std::string::npos) values->push_back(argument.substr(equals + 1));
  }
  for (const auto& [name, given] : values_) {
    if (is_in(flag_names, name)) {
      if (!given.empty()) {
        throw UserError(
            fmt::format("{}: --{} takes no value, {} was given", command, name, given[0]));
      }
      continue;
    }
    if (given.empty()) throw UserError(fmt::format("{}: --{} has no value", command, name));
    if (given.size() > 1 && is_in(names, name)) {
      throw UserError(
          fmt::format("{}: --{} takes one value, {} were given", command, name, given.size()));
    }
  }
}

std::optional<std::string> Options::text(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second.front());
}

std::vector<std::string> Options::required_list(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    throw UserError(
        fmt::format("{}: --{} is missing; see `longspan help {}`", command_, name, command_));
  }
  return found->second;
}

std::string Options::required(const std::string& name) const { return required_list(name).front(); }

std::vector<std::string> Options::list(const std::string& name) const {
  std::vector<std::string> words;
  const auto found = values_.find(name);
  if (found == values_.end()) return words;
  for (const std::string& value : found->second) {
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      if (end > begin) words.push_back(value.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return words;
}

bool Options::flag(const std::string& name) const { return values_.contains(name); }

int64_t Options::number_from(const std::string& name, const std::string& text, int64_t least,
                             int64_t most) const {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || number < least || number > most) {
    throw UserError(fmt::format("{}: --{} {}: wanted is a whole number, at least {}, at most {}",
                                command_, name, text, least, most));
  }
  return number;
}

std::optional<int64_t> Options::whole_number(const std::string& name, int64_t least,
                                             int64_t most) const {
  const std::optional<std::string> given = text(name);
  if (!given) return std::nullopt;
  return number_from(name, *given, least, most);
}

std::vector<int64_t> Options::whole_numbers(const std::string& name, int64_t least,
                                            int64_t most) const {
  std::vector<int64_t> numbers;
  for (const std::string& word : list(name))
    numbers.push_back(number_from(name, word, least, most));
  return numbers;
}

void require_free_folder(const std::string& command, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  if (fs::is_directory(folder, error) && fs::is_empty(folder, error)) return;
  throw UserError(fmt::format(
      "{}: {} is there already and not an empty folder; nothing was written. Choose another "
      "--output or remove it.",
      command, folder));
}

}  // namespace longspan
