// `longspan chat`: questions at the terminal, with streamed answers.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "cli/commands.h"
#include "cli/generation_arguments.h"
#include "longspan/base/user_error.h"
#include "longspan/generation/prompt_media.h"
#include "longspan/text/counted.h"
#include "longspan/text/decode_stream.h"
#include "longspan/text/line_editor.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

std::atomic<bool> stop_wanted{false};

/// The first Ctrl-C stops the answer; a second one before that ends the program.
void on_interrupt(int) {
  if (stop_wanted.exchange(true)) _exit(130);
}

/// For its lifetime, Ctrl-C stops the answer.
class InterruptScope {
 public:
  InterruptScope() {
    stop_wanted = false;
    before_ = std::signal(SIGINT, on_interrupt);
  }
  ~InterruptScope() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

/// Prints text of the program, and flushes.
void put(const std::string& text) {
  print_text(text);
  std::fflush(stdout);
}

void put_faint(const std::string& text) {
  print_faint(text);
  std::fflush(stdout);
}

class Chat {
 public:
  Chat(Assistant& assistant, FramePatches patches, bool terminal)
      : assistant_(assistant),
        decoder_(assistant.config.spec, std::move(assistant.parameters), /*num_sequences=*/1,
                 assistant.config.max_position_embeddings, std::move(patches)),
        terminal_(terminal) {}

  /// Prints the answer to stdout, and returns how it ended. Throws UserError if the template
  /// refuses the question or it is too long; the question is then forgotten.
  FinishReason ask(const std::string& question) {
    Conversation asked = conversation_;
    asked.messages.push_back({Role::kUser, question});
    Conversation one{.messages = {asked.messages.back()}, .source = {}, .rejected = {}};
    place_prompt_media(nlohmann::ordered_json::object(), /*folder=*/"", one);
    asked.messages.back() = std::move(one.messages.front());
    const Sample prompt = assistant_.prompt(asked);
    if (terminal_) say_pictures(prompt, asked.messages.back());

    DecodeStream stream(assistant_.tokenizer, assistant_.skip_special_tokens);
    std::string text;
    const auto show = [&](const std::string& piece) {
      text += piece;
      if (isatty(STDOUT_FILENO)) {
        put(piece);
      } else {
        print_data(piece);  // for a file or another program
      }
    };
    Answer answer;
    const auto begin = std::chrono::steady_clock::now();
    {
      const InterruptScope interrupts;
      GenerationListener listener;
      listener.token = [&](int64_t, int32_t token) { show(stream.step(token)); };
      listener.answer = [&](int64_t, Answer made) { answer = std::move(made); };
      listener.go_on = [] { return !stop_wanted; };
      generate(decoder_, std::vector<Sample>{prompt}, assistant_.options, listener);
    }
    show(stream.finish());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    put("\n");
    if (terminal_) say_how_it_ended(answer, seconds);
    // The next answer of the session draws other random numbers.
    ++assistant_.options.seed;
    if (!assistant_.chat) return answer.reason;
    asked.messages.push_back({Role::kAssistant, text});
    conversation_ = std::move(asked);
    return answer.reason;
  }

  void clear() {
    const bool has_system =
        !conversation_.messages.empty() && conversation_.messages[0].role == Role::kSystem;
    conversation_.messages.resize(has_system ? 1 : 0);
  }

  /// Starts a new conversation with this system message; empty: the template's own.
  void set_system(const std::string& text) {
    conversation_.messages.clear();
    if (!text.empty()) conversation_.messages.push_back({Role::kSystem, text});
  }

 private:
  /// Prints a line for each picture of the question.
  void say_pictures(const Sample& prompt, const Message& question) const {
    const size_t before = prompt.pictures.size() - question.pictures.size();
    for (size_t i = before; i < prompt.pictures.size(); ++i) {
      const Picture& picture = prompt.pictures[i];
      put_faint(fmt::format("{} {}: {}", picture.is_video ? "video" : "picture",
                            picture.files.front(), counted(picture.num_features, "token")));
      put("\n");
    }
  }

  void say_how_it_ended(const Answer& answer, double seconds) const {
    const double count = static_cast<double>(answer.tokens.size());
    std::string line = fmt::format("{} token{}, {:.1f} tokens/s", answer.tokens.size(),
                                   answer.tokens.size() == 1 ? "" : "s", count / seconds);
    switch (answer.reason) {
      case FinishReason::kStop:
        break;
      case FinishReason::kLength:
        line += fmt::format("; cut at max_new_tokens={}", assistant_.options.max_new_tokens);
        break;
      case FinishReason::kContext:
        line += fmt::format("; the model takes {} tokens: /clear begins anew",
                            assistant_.config.max_position_embeddings);
        break;
      case FinishReason::kInterrupted:
        line += "; stopped";
        break;
    }
    put_faint(line);
    put("\n\n");
  }

  Assistant& assistant_;
  CachedDecoder decoder_;
  bool terminal_;
  Conversation conversation_;
};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// Runs a command of the user. Returns false to leave.
bool obey(Chat& chat, const std::string& line) {
  const size_t end = line.find(' ');
  const std::string command = line.substr(0, end);
  const std::string rest = end == std::string::npos ? "" : trimmed(line.substr(end));
  if (command == "/exit" || command == "/quit") return false;
  if (command == "/clear") {
    chat.clear();
    put("A new conversation.\n\n");
  } else if (command == "/system") {
    chat.set_system(rest);
    put(rest.empty() ? "A new conversation, without a system message of yours.\n\n"
                     : "A new conversation with this system message.\n\n");
  } else {
    put(fmt::format("There is no command {}: /clear, /system TEXT, /exit.\n\n", command));
  }
  return true;
}

void converse(Chat& chat, const Assistant& assistant) {
  put_faint(fmt::format("{}\n{}{}Ctrl-C stops an answer, Ctrl-D leaves.", assistant.description,
                        assistant.pictures && assistant.chat
                            ? "<image:PATH> in a question shows the picture of that file.\n"
                            : "",
                        assistant.chat
                            ? "/clear begins anew, /system TEXT sets the system message, "
                              "/exit leaves; "
                            : "Each line is a separate text. /exit leaves; "));
  put("\n\n");
  LineEditor editor;
  bool interrupted = false;
  for (;;) {
    const TypedLine line = editor.read("> ");
    if (line.kind == TypedLine::kEnd) return;
    const bool interrupted_again = std::exchange(interrupted, line.kind == TypedLine::kInterrupted);
    if (interrupted) {
      // A Ctrl-C that came too late to stop an answer must not end the conversation.
      if (interrupted_again) return;
      put("Ctrl-D or /exit leaves, and so does Ctrl-C once more.\n");
      continue;
    }
    const std::string question = trimmed(line.text);
    if (question.empty()) continue;
    try {
      if (question[0] == '/' && question.find('\n') == std::string::npos) {
        if (!obey(chat, question)) return;
      } else {
        chat.ask(question);
      }
    } catch (const UserError& error) {
      put(fmt::format("error: {}\n\n", error.what()));
    }
  }
}

int run_chat(const Arguments& words) {
  GenerationArguments arguments = read_generation_arguments("chat", words, /*writes_file=*/false);
  AssistantRequest& request = arguments.request;
  if (arguments.words.size() + !request.model_name_or_path.empty() != 1) {
    throw UserError(fmt::format("chat: {}: longspan chat MODEL [key=value ...]",
                                arguments.words.empty() ? "the model's folder is missing"
                                                        : "one model's folder is wanted"));
  }
  if (!arguments.words.empty()) request.model_name_or_path = arguments.words[0];
  const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  if (!arguments.seed_given) request.seed = std::random_device()();
  request.takes_pictures = true;
  Assistant assistant = load_assistant(request);
  if (!assistant.warning.empty()) print_err("{}\n", assistant.warning);
  Chat chat(assistant, patches_for(request, assistant), terminal);
  if (terminal) {
    converse(chat, assistant);
    return 0;
  }
  if (isatty(STDIN_FILENO)) {
    print_err("Type the question; Ctrl-D on a line of its own ends it.\n");
  }
  const std::string question = trimmed({std::istreambuf_iterator<char>(std::cin), {}});
  if (question.empty()) throw UserError("chat: there is no question on stdin");
  constexpr int kInterruptStatus = 130;
  return chat.ask(question) == FinishReason::kInterrupted ? kInterruptStatus : 0;
}

const std::string& help_of_chat() {
  static const std::string text =
      std::string(
          R"(Talks to a model or a trained adapter. Answers appear as they are generated.

  longspan chat output/my-sft
  longspan chat output/my-lora temperature=0.7 top_p=0.9
  longspan chat models/base adapter_name_or_path=output/my-lora template=chatml
  echo "Why is the sky blue?" | longspan chat output/my-sft temperature=0

MODEL is a Hugging Face folder, or the folder of a LoRA adapter, which names its base model. At a
terminal each line is a question (pasted text may have several lines), and the model is shown the
whole conversation. A question to a model that takes pictures may name files as <image:PATH> or
<video:PATH>. /clear starts a new conversation, /system TEXT starts one with this system message,
/exit or Ctrl-D leaves, Ctrl-C stops an answer and clears a line. Without a terminal all of stdin
is one question, and only the answer is printed. On CPU.

)") + generation_keys_help(/*writes_file=*/false);
  return text;
}

}  // namespace

Command chat_command() {
  return {"chat", "talk to a model or an adapter: longspan chat output/my-sft", help_of_chat(),
          run_chat,
          /*computes=*/true};
}

}  // namespace longspan
