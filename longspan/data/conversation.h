// A row of a data set, as read from its file. No torch.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// The speaker of a message.
enum class Role {
  kSystem,
  kUser,
  kAssistant,
  kObservation,  ///< a tool's result
};
/// Returns the role's name in messages to the user: "system", "user", "assistant", "observation".
std::string name_of(Role role);
/// True if an answer must follow a message of this role.
constexpr bool is_question(Role role) { return role == Role::kUser || role == Role::kObservation; }
/// True if a message of this role is an answer, which can be trained.
constexpr bool is_answer(Role role) { return role == Role::kAssistant; }

/// A call of a tool.
struct FunctionCall {
  std::string name;
  std::string arguments;  // JSON in the format of Python's json.dumps(ensure_ascii=False)
  std::string id = {};    // empty: not in the row
};

/// Tags in a message's content. Each tag stands for a picture or a video.
inline constexpr std::string_view kImageTag = "<image>", kVideoTag = "<video>";

/// A picture or video of a message, at one of the tags of its content.
struct MessagePicture {
  bool is_video = false;
  std::vector<std::string> files = {};  // one picture, one video, or a video's frames in order
  bool in_one_file = false;             // true: a video that is not given as a list of frames
  /// text: the text that stands for the picture in a row. printed: the text that the model's own
  /// template prints for the picture, which may equal `text`. Both are empty until the files are
  /// read (data/picture_rows.h).
  std::string text = {}, printed = {};
};

/// One message of a conversation.
struct Message {
  Role role;
  std::string content;
  std::string thoughts = {};             // of an answer: reasoning before the content
  std::vector<FunctionCall> calls = {};  // of an answer: calls after the content
  bool is_trained = true;                // false: the row excludes this message from training
  std::string name = {}, call_id = {};   // of a tool's result: the tool, and the call's id
  /// The pictures and videos, in the order of the content's tags. Empty: tags in the content are
  /// plain text.
  std::vector<MessagePicture> pictures = {};
};

/// A tag in a text.
struct TagPlace {
  size_t begin, size;
  bool is_video;
};
/// Returns the text's tags, in order.
std::vector<TagPlace> tags_in(std::string_view text);

/// True if a message has no content, no thoughts and no calls.
inline bool is_empty(const Message& message) {
  return message.content.empty() && message.thoughts.empty() && message.calls.empty();
}

/// The first message that breaks the order of a chat. The order is: an optional system message;
/// then answers, each after one user message or after one or more tool results.
struct OutOfTurn {
  size_t index;
  bool answer_is_due;  // true: an answer is expected; false: a question
};
std::optional<OutOfTurn> first_out_of_turn(const std::vector<Message>& messages);

/// One row of a data set before tokenization. pt: one user message with the text. sft, kto: a
/// conversation that ends with an answer. dpo, rm: a conversation that ends with the chosen answer.
struct Conversation {
  std::vector<Message> messages;
  std::string source;               // "file, row 17", for messages
  std::optional<Message> rejected;  // dpo, rm
  bool desirable = true;            // kto: true if the answer is desirable
  std::string tools = {};           // JSON list of the callable tools; empty: none
  std::string documents = {};       // JSON list of texts for the model's template; empty: none
  int32_t dataset = 0;              // index among the data sets that were read together
};

bool has_pictures(const Message& message);
bool has_pictures(const Conversation& row);
bool have_pictures(const std::vector<Conversation>& rows);  // true if any row has pictures

}  // namespace longspan
