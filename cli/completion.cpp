// `longspan completion`: prints shell completions of commands, keys and values, from the tables.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/generation_arguments.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/text/nearest.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

/// Returns the values that can be listed; none for numbers and text.
std::vector<std::string> values_of(const Key& key) {
  std::vector<std::string> values(key.choices.begin(), key.choices.end());
  const bool truth = std::holds_alternative<FieldOf<bool>>(key.field) ||
                     std::holds_alternative<FieldOf<std::optional<bool>>>(key.field);
  if (truth) values = {"true", "false"};
  return values;
}

/// A configuration key for shells.
struct ShownKey {
  std::string_view name, help;
  std::vector<std::string> values;
};

std::vector<ShownKey> all_keys() {
  std::vector<ShownKey> keys;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) keys.push_back({key.name, key.help, values_of(key)});
  }
  for (const OppositeKey& key : opposite_keys()) {
    keys.push_back({key.name, key.help, {"true", "false"}});
  }
  return keys;
}

std::string names_of_commands() {
  std::string names;
  for (const Command& command : commands()) names += (names.empty() ? "" : " ") + command.name;
  return names;
}

std::string names_of_keys() {
  std::string names;
  for (const ShownKey& key : all_keys())
    names += fmt::format("{}{}", names.empty() ? "" : " ", key.name);
  return names;
}

std::string names_of_generation_keys(bool writes_file) {
  std::string names;
  for (const GenerationKey& key : generation_keys(writes_file)) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", key.name);
  }
  return names;
}

/// Returns the keys with listable values, of configuration files and of generation.
std::vector<std::pair<std::string, std::vector<std::string>>> listed_values() {
  std::vector<std::pair<std::string, std::vector<std::string>>> listed;
  const auto add = [&listed](std::string_view name, std::vector<std::string> values) {
    const bool known =
        std::ranges::any_of(listed, [&](const auto& other) { return other.first == name; });
    if (!values.empty() && !known) listed.emplace_back(name, std::move(values));
  };
  for (const ShownKey& key : all_keys()) add(key.name, key.values);
  for (const GenerationKey& key : generation_keys(/*writes_file=*/true)) add(key.name, key.values);
  return listed;
}

/// Quotes a text for a POSIX shell.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char letter : text) out += letter == '\'' ? "'\\''" : std::string(1, letter);
  return out + "'";
}

/// Returns the first sentence of a help text.
std::string_view first_sentence(std::string_view help) {
  const size_t end = help.find(". ");
  return end == std::string_view::npos ? help : help.substr(0, end + 1);
}

std::string bash() {
  std::string cases;
  for (const auto& [name, values] : listed_values()) {
    cases += fmt::format("    {}) echo {} ;;\n", name,
                         shell_quoted(fmt::format("{}", fmt::join(values, " "))));
  }
  // bash splits words at =, unless COMP_WORDBREAKS was changed.
  return fmt::format(R"sh(# longspan: eval "$(longspan completion bash)" in ~/.bashrc
_longspan_values() {{
  case $1 in
{0}  esac
}}
_longspan() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} key= value= prefix=
  local commands='{1}'
  local keys='{2}'
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "$commands" -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
    help) COMPREPLY=($(compgen -W "$commands $keys" -- "$current")); return ;;
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$current")); return ;;
    train|data|export) [ "$COMP_CWORD" -eq 2 ] && return ;;
    chat) keys='{3}' ;;
    generate) keys='{4}' ;;
    *) return ;;
  esac
  if [ "$current" = = ]; then
    key=$before
  elif [ "$before" = = ]; then
    key=${{COMP_WORDS[COMP_CWORD-2]}} value=$current
  elif [[ $current == *=* ]]; then
    key=${{current%%=*}} value=${{current#*=}} prefix=${{current%%=*}}=
  elif [[ $before == --* ]]; then
    key=$before value=$current
  fi
  if [ -n "$key" ]; then
    key=${{key#--}}
    COMPREPLY=($(compgen -P "$prefix" -W "$(_longspan_values "${{key//-/_}}")" -- "$value"))
    return
  fi
  if [[ $current == --* ]]; then
    COMPREPLY=($(compgen -P -- -W "$keys" -- "${{current#--}}"))
    return
  fi
  compopt -o nospace 2> /dev/null
  COMPREPLY=($(compgen -S = -W "$keys" -- "$current"))
}}
complete -o bashdefault -o default -F _longspan longspan
)sh",
                     cases, names_of_commands(), names_of_keys(), names_of_generation_keys(false),
                     names_of_generation_keys(true));
}

std::string zsh() {
  std::string described_commands, described_keys, cases;
  for (const Command& command : commands()) {
    described_commands +=
        fmt::format("    {}\n", shell_quoted(command.name + ":" + command.summary));
  }
  for (const ShownKey& key : all_keys()) {
    described_keys += fmt::format(
        "    {}\n", shell_quoted(fmt::format("{}:{}", key.name, first_sentence(key.help))));
  }
  for (const auto& [name, values] : listed_values()) {
    cases += fmt::format("          {}) compadd -- {} ;;\n", name, fmt::join(values, " "));
  }
  const auto described = [](bool writes_file) {
    std::string text;
    for (const GenerationKey& key : generation_keys(writes_file)) {
      text += " " + shell_quoted(fmt::format("{}:{}", key.name, key.wanted));
    }
    return text;
  };
  return fmt::format(R"sh(#compdef longspan
# longspan: eval "$(longspan completion zsh)" in ~/.zshrc, after compinit
_longspan() {{
  local -a commands keys
  commands=(
{0}  )
  keys=(
{1}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
    help) _describe command commands; _describe key keys ;;
    completion) compadd bash zsh fish ;;
    train|data|export|chat|generate)
      [[ $words[2] == chat ]] && keys=({3} )
      [[ $words[2] == generate ]] && keys=({4} )
      if (( CURRENT == 3 )) && [[ $words[2] == (train|data|export) ]]; then
        _files -g '*.(yaml|yml|json)'
      elif [[ $PREFIX == *=* ]]; then
        local key=${{PREFIX%%=*}}
        compset -P '*='
        case $key in
{2}          *) _files ;;
        esac
      else
        _describe key keys -S =
        [[ $words[2] == (chat|generate) ]] && _files
      fi ;;
    *) _files ;;
  esac
}}
if [[ $funcstack[1] == _longspan ]]; then _longspan "$@"; else compdef _longspan longspan; fi
)sh",
                     described_commands, described_keys, cases, described(false), described(true));
}

std::string fish() {
  const auto escaped = [](std::string_view text) {
    std::string out = "'";
    for (const char letter : text) {
      if (letter == '\'' || letter == '\\') out += '\\';
      out += letter;
    }
    return out + "'";
  };
  std::string text =
      "# longspan: longspan completion fish > ~/.config/fish/completions/longspan.fish\n";
  for (const Command& command : commands()) {
    text += fmt::format("complete -c longspan -f -n __fish_use_subcommand -a {} -d {}\n",
                        command.name, escaped(command.summary));
  }
  text +=
      "complete -c longspan -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh "
      "fish'\n";
  for (const ShownKey& key : all_keys()) {
    std::vector<std::string> words;
    for (const std::string& value : key.values)
      words.push_back(fmt::format("{}={}", key.name, value));
    if (words.empty()) words.push_back(fmt::format("{}=", key.name));
    const std::string help = escaped(first_sentence(key.help));
    text += fmt::format(
        "complete -c longspan -n '__fish_seen_subcommand_from train data export' -a '{}' -d "
        "{}\n",
        fmt::join(words, " "), help);
    text +=
        fmt::format("complete -c longspan -f -n '__fish_seen_subcommand_from help' -a {} -d {}\n",
                    key.name, help);
  }
  for (const GenerationKey& key : generation_keys(/*writes_file=*/true)) {
    std::vector<std::string> words;
    for (const std::string& value : key.values) words.push_back(key.name + "=" + value);
    if (words.empty()) words.push_back(key.name + "=");
    const auto of_both = generation_keys(/*writes_file=*/false);
    const bool both = std::ranges::find(of_both, key.name, &GenerationKey::name) != of_both.end();
    text += fmt::format("complete -c longspan -n '__fish_seen_subcommand_from {}' -a '{}' -d {}\n",
                        both ? "chat generate" : "generate", fmt::join(words, " "),
                        escaped(key.wanted));
  }
  return text;
}

int run_completion(const Arguments& arguments) {
  const std::vector<std::string> shells = {"bash", "zsh", "fish"};
  if (arguments.size() != 1) {
    throw UserError("completion: name one shell: longspan completion bash (or zsh, fish)");
  }
  if (arguments[0] == "bash") {
    print_data(bash());
  } else if (arguments[0] == "zsh") {
    print_data(zsh());
  } else if (arguments[0] == "fish") {
    print_data(fish());
  } else {
    throw UserError(fmt::format("completion: there is no {}; choose one of: {}", arguments[0],
                                fmt::join(shells, ", ")));
  }
  return 0;
}

constexpr const char* kCompletionHelp =
    R"sh(Prints what a shell needs to complete commands, keys and the values of keys.

  eval "$(longspan completion bash)"      # in ~/.bashrc
  eval "$(longspan completion zsh)"       # in ~/.zshrc, after compinit
  longspan completion fish > ~/.config/fish/completions/longspan.fish
)sh";

}  // namespace

Command completion_command() {
  return {"completion", "print completions for a shell: longspan completion bash", kCompletionHelp,
          run_completion,
          /*computes=*/false};
}

}  // namespace longspan
