// `longspan data`: shows what training makes of its data sets.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "cli/commands.h"
#include "cli/process/run_config.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/input/numbers.h"
#include "longspan/models/model_config.h"
#include "longspan/registers/stage.h"
#include "longspan/report/data_page.h"
#include "longspan/report/data_text.h"
#include "longspan/session/attended_model.h"
#include "longspan/settings/choices.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"
#include "longspan/text/styled.h"
#include "longspan/train/encoded_data.h"

namespace longspan {

namespace {

constexpr int64_t kMostExamples = 1000;
constexpr PieceLimits kInTerminal{.run = 240, .sample = 1600},
    kAlone{.run = 100'000, .sample = 200'000};
constexpr int64_t kPageTokens = 60'000;  // of all examples on the page
constexpr size_t kPageExamples = 120;
constexpr int64_t kPageFirst = 5;  // examples of each data set

struct DataArguments {
  std::string config_path;
  std::vector<std::string> overrides;
  std::optional<int64_t> examples, example;
  std::string page = "data.html";
};

int64_t number_of(const std::string& name, const std::string& text, int64_t least, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least &&
      number <= most) {
    return number;
  }
  throw UserError(fmt::format("data: {} {}: wanted is a whole number, at least {}, at most {}",
                              name, text, least, most));
}

DataArguments read_data_arguments(const Arguments& words) {
  DataArguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name != "--examples" && name != "--example" && name != "--html") {
      if (arguments.config_path.empty()) {
        if (words[i].starts_with("--") || name.size() < words[i].size()) break;
        arguments.config_path = words[i];
      } else {
        arguments.overrides.push_back(words[i]);
      }
      continue;
    }
    if (name.size() == words[i].size() && i + 1 == words.size()) {
      throw UserError(fmt::format("data: {} has no value", name));
    }
    const std::string value =
        name.size() < words[i].size() ? words[i].substr(name.size() + 1) : words[++i];
    if (name == "--html") {
      arguments.page = value;
    } else if (name == "--examples") {
      arguments.examples = number_of(name, value, 0, kMostExamples);
    } else {
      arguments.example = number_of(name, value, 1, kMostCounted);
    }
  }
  if (arguments.config_path.empty()) {
    throw UserError(
        "data: the configuration file is missing: longspan data config.yaml [key=value ...]");
  }
  return arguments;
}

/// Throws UserError if the page would replace a file that is not such a page.
void check_page(const std::string& path) {
  if (path.empty()) throw UserError("data: --html has no value");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw UserError(fmt::format("data: --html {} is a folder; name a file in it", path));
  }
  std::optional<InputFile> file = InputFile::open_if_there(path, "page");
  if (!file) return;
  const std::string_view wanted = kPageBegin;
  std::string begin(wanted.size(), '\0');
  begin.resize(file->read(begin.data(), begin.size()));
  if (begin == wanted) return;
  throw UserError(fmt::format(
      "data: {} is there already, and `longspan data` has not written it; nothing was written. "
      "Choose another file by --html.",
      path));
}

/// Keeps the lines that training prints.
class Lines final : public EventSink {
 public:
  void take(const Event& event) override {
    if (const Said* said = std::get_if<Said>(&event)) lines.push_back(said->text);
  }
  std::vector<std::string> lines;
};

bool takes_colours() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  return isatty(STDOUT_FILENO) && variable("NO_COLOR").empty() && variable("TERM") != "dumb";
}

/// The page's head: what the run makes of the keys.
std::vector<std::pair<std::string, std::string>> facts_of(const Config& config, const Stage& stage,
                                                          const std::string& path) {
  const DataSettings& data = config.data;
  const bool packed = data.neat_packing || packs(data, stage);
  return {{"configuration", path},
          {"model", config.model.model_name_or_path},
          {"stage", config.method.stage},
          {"template", data.chat_template.empty() ? "the model's own" : data.chat_template},
          {"cutoff_len", fmt::format("{}", data.cutoff_len)},
          {"packing", data.neat_packing ? "neat"
                      : packed          ? "yes"
                                        : "no"},
          {"train_on_prompt", data.train_on_prompt ? "yes" : "no"},
          {"mask_history", data.mask_history ? "yes" : "no"}};
}

void print_texts(const std::vector<StyledText>& texts) {
  print_data(takes_colours() ? styled(texts) : bracketed(texts));
}

std::vector<ShownExample> examples_of_page(const ExampleRows& rows, int64_t num_first) {
  std::vector<Choice> chosen =
      choose_examples(rows.train, rows.rows, std::max(num_first, kPageFirst), /*outliers=*/true);
  if (chosen.size() > kPageExamples) chosen.resize(kPageExamples);
  const int64_t each =
      kPageTokens / std::max<int64_t>(std::ssize(chosen), 20);  // of one or two documents
  std::vector<ShownExample> examples;
  for (const Choice& choice : chosen) {
    examples.push_back(shown_example(rows, choice, {.run = each / 2, .sample = each}));
  }
  return examples;
}

int run_data(const Arguments& words) {
  const DataArguments arguments = read_data_arguments(words);
  Config config = load_run_config(arguments.config_path, arguments.overrides);
  const Stage& stage = stage_of(config.method);
  if (config.data.dataset.empty()) {
    throw UserError(
        "data: the configuration has no dataset, whose examples would be shown; name one");
  }
  check_page(arguments.page);
  const bool stops = on_bad_row_of(config.data) == OnBadRow::kStop;
  config.data.on_bad_row = "skip";
  // Of config.json alone: the weights need not be there.
  const ModelConfig model =
      model_config_for(config, load_model_config(config.model.model_name_or_path));
  const LocalTime now = local_time_now();
  const RowSettings settings{config.model, config.method, config.data, config.optimization.seed};
  const EncodedData data = encode_data(settings, model, now);
  Lines said;
  Events events(/*rank=*/0, &said);
  say_model(settings, model, events);
  say_data(settings, model, now, data, events);

  const DataSurvey survey =
      survey_of({config.data, stage, data.rows, data.train, data.eval, stops});
  const auto encode = [&](const DataSettings& changed, const std::vector<Conversation>& rows) {
    return encode_examples({changed, stage, data.tokenizer, now, model.spec.vocab_size,
                            data.pictures ? &*data.pictures : nullptr},
                           rows);
  };
  const ExampleRows rows{config.data, stage, data.tokenizer, data.rows, data.train, encode};
  const int64_t num_examples = std::ssize(data.train.rows);
  const int64_t num_first =
      arguments.examples.value_or(std::ssize(data.rows.datasets) == 1 ? 3 : 1);
  std::vector<Choice> chosen;
  if (!arguments.example) {
    chosen = choose_examples(data.train, data.rows, num_first, /*outliers=*/false);
  } else if (*arguments.example > num_examples) {
    throw UserError(fmt::format("data: --example {}: there are {}", *arguments.example,
                                counted(num_examples, "example")));
  } else {
    chosen = {{*arguments.example - 1}};
  }
  print_texts(numbers_as_text(survey, config.data.cutoff_len));
  print_texts({{"\nTrained tokens are ", Style::kPlain},
               {takes_colours() ? "green" : "in brackets", Style::kTrained},
               {".\n", Style::kPlain}});
  for (const Choice& choice : chosen) {
    print_texts(
        example_as_text(shown_example(rows, choice, arguments.example ? kAlone : kInTerminal)));
  }
  if (!said.lines.empty()) {
    print_texts({{"\nTraining prints of these data sets:\n", Style::kHeading}});
    for (const std::string& line : said.lines) print_out("{}\n", line);
  }
  if (!survey.warnings.empty()) {
    print_texts({{"\nWarnings:\n", Style::kHeading}});
    print_texts(warnings_as_text(survey.warnings));
  }
  write_file_atomically(arguments.page,
                        html_of({.facts = facts_of(config, stage, arguments.config_path),
                                 .survey = survey,
                                 .examples = examples_of_page(rows, num_first),
                                 .notes = said.lines,
                                 .cutoff_len = config.data.cutoff_len,
                                 .num_examples = num_examples}));
  print_out("\nPage: {}\n", arguments.page);
  return 0;
}

constexpr const char* kDataHelp =
    R"(Shows what training makes of its data sets, before training: numbers of each data set, examples with
trained tokens marked, and warnings. Writes them as a page of HTML, too.

  longspan data config.yaml
  longspan data config.yaml template=qwen cutoff_len=8192
  longspan data config.yaml --example 17

The configuration and its keys are those of `longspan train`. Reads the tokenizer and config.json of
the model, and no weights. Rows that cannot be used are counted, also with on_bad_row: stop.

  --examples N   prints the first N examples of each data set [3; of several data sets 1]
  --example K    prints example K alone, in the order of the data sets before the shuffle
  --html FILE    the page [data.html]; replaces only a page of this command

On a terminal, trained tokens are green; NO_COLOR=1 and other outputs have brackets instead. A
table's columns: cut (examples that cutoff_len cuts), lost (tokens, by the cut), duplicates (of an earlier
example), bad (rows that cannot be used), untrained (bad rows without a trained token).
)";

}  // namespace

Command data_command() {
  return {"data", "show examples with their trained tokens: longspan data config.yaml", kDataHelp,
          run_data,
          /*computes=*/true};
}

}  // namespace longspan
