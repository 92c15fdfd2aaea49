// `longspan generate`: answers a file of prompts.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "cli/commands.h"
#include "cli/generation_arguments.h"
#include "longspan/base/user_error.h"
#include "longspan/generation/prompt_file.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"
#include "longspan/text/progress_bar.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_output(const std::string& path) {
  throw UserError(fmt::format("generate: cannot write {}: {}", path.empty() ? "stdout" : path,
                              std::strerror(errno)));
}

/// Checks the output before minutes of work. Leaves nothing. Throws UserError if the file exists or
/// cannot be made.
void check_output(const std::string& path) {
  std::error_code error;
  if (path.empty()) return;
  if (fs::exists(path, error)) {
    throw UserError(
        fmt::format("generate: {} is there already; nothing was written. Choose another output "
                    "or remove it.",
                    path));
  }
  std::FILE* file = std::fopen(path.c_str(), "wx");
  if (file == nullptr) refuse_output(path);
  std::fclose(file);
  fs::remove(path, error);
}

/// Writes lines in the order of the prompts, each as soon as those before it are written.
class AnswerWriter {
 public:
  /// Empty: stdout. Throws UserError if the file cannot be made, or exists after all.
  explicit AnswerWriter(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_ = std::fopen(path.c_str(), "wx");
    if (file_ == nullptr) refuse_output(path);
  }
  ~AnswerWriter() {
    if (file_ != stdout) std::fclose(file_);
  }
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;

  void write(int64_t number, std::string line) {
    waiting_[number] = std::move(line) + "\n";
    for (auto next = waiting_.begin(); next != waiting_.end() && next->first == next_number_;
         next = waiting_.erase(next), ++next_number_) {
      const std::string& text = next->second;
      if (file_ == stdout && isatty(STDOUT_FILENO)) {
        print_text(text);
      } else if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) {
        refuse_output(path_);
      }
    }
    if (std::fflush(file_) != 0) refuse_output(path_);
  }

 private:
  std::string path_;
  std::FILE* file_ = stdout;
  std::map<int64_t, std::string> waiting_;
  int64_t next_number_ = 0;
};

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kContext:
    case FinishReason::kInterrupted:
      return "length";
  }
  throw std::logic_error("an answer without a reason of its end");
}

std::string text_of(const Assistant& assistant, const Answer& answer) {
  return assistant.tokenizer.decode(answer.tokens, assistant.skip_special_tokens);
}

int run_generate(const Arguments& words) {
  GenerationArguments arguments =
      read_generation_arguments("generate", words, /*writes_file=*/true);
  AssistantRequest& request = arguments.request;
  if (arguments.words.empty()) {
    throw UserError(
        "generate: the file of prompts is missing: longspan generate FILE MODEL [key=value ...]");
  }
  if (arguments.words.size() - 1 + !request.model_name_or_path.empty() != 1) {
    throw UserError(fmt::format("generate: {}: longspan generate FILE MODEL [key=value ...]",
                                arguments.words.size() == 1 ? "the model's folder is missing"
                                                            : "one file and one model are wanted"));
  }
  if (arguments.words.size() == 2) request.model_name_or_path = arguments.words[1];

  UnreadKeys unread;
  std::vector<std::string> notes;
  const std::vector<PromptRow> rows = read_prompt_file(
      arguments.words[0], arguments.max_samples.value_or(INT64_MAX), &unread, &notes);
  check_output(arguments.output);
  request.takes_pictures = std::ranges::any_of(
      rows, [](const PromptRow& row) { return has_pictures(row.conversation); });
  Assistant assistant = load_assistant(request);
  print_err("{}\n", assistant.description);
  if (!assistant.warning.empty()) print_err("{}\n", assistant.warning);
  for (const std::string& note : notes) print_err("warning: {}\n", note);
  if (const std::string keys = unread.text(); !keys.empty()) {
    print_err("warning: {}: {}\n", arguments.words[0], keys);
  }
  std::vector<Sample> prompts;
  for (const PromptRow& row : rows) prompts.push_back(assistant.prompt(row.conversation));
  AnswerWriter writer(arguments.output);

  CachedDecoder decoder(assistant.config.spec, std::move(assistant.parameters),
                        std::min(arguments.batch_size, std::ssize(prompts)),
                        assistant.config.max_position_embeddings, patches_for(request, assistant));
  int64_t num_answers = 0, num_tokens = 0, num_stopped = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto tokens_per_second = [&] {
    return static_cast<double>(num_tokens) /
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  {
    ProgressBar bar(std::ssize(prompts));
    GenerationListener listener;
    listener.token = [&](int64_t, int32_t) { ++num_tokens; };
    listener.answer = [&](int64_t prompt, Answer answer) {
      writer.write(prompt,
                   answered_row(rows[prompt], text_of(assistant, answer), name_of(answer.reason)));
      num_stopped += answer.reason == FinishReason::kStop;
      const double none = std::nan("");
      bar.update(++num_answers, progress_message(none, tokens_per_second(), none));
    };
    generate(decoder, prompts, assistant.options, listener);
  }
  print_err("{}, {} of them ended by the model; {}, {:.1f} tokens/s{}\n",
            counted(num_answers, "answer"), num_stopped, counted(num_tokens, "token"),
            tokens_per_second(),
            arguments.output.empty() ? "" : fmt::format(": {}", arguments.output));
  return 0;
}

const std::string& help_of_generate() {
  static const std::string text =
      std::string(
          R"(Answers a file of prompts, to look at a data set before and after training.

  longspan generate questions.jsonl output/my-sft output=answers.jsonl
  longspan generate data/my_chats.json output/my-lora max_samples=20 temperature=0

FILE is json, jsonl, csv, txt (a prompt a line), parquet or arrow; the first four may be compressed
(.gz, .zst). A row has messages (or conversations), or instruction (and input, system, history), or
prompt, or text; an answer at the end of the messages is left out. A row may have pictures: in its
texts <image:PATH> or <video:PATH>, or <image> with the file in the column images; paths begin at
FILE's folder. Each row is written as a line of JSON with the answer in "predict" and "stop" (the
model ended it) or "length" in "finish_reason", in the order of the file. MODEL is a Hugging Face
folder or the folder of a LoRA adapter. On CPU.

)") + generation_keys_help(/*writes_file=*/true);
  return text;
}

}  // namespace

Command generate_command() {
  return {"generate", "answer a file of prompts: longspan generate FILE MODEL", help_of_generate(),
          run_generate,
          /*computes=*/true};
}

}  // namespace longspan
