#include "longspan/data/packed_conversation.h"

#include <stdexcept>
#include <string>

namespace longspan {
namespace {

// The bindings name all members: with a further one, this file does not compile.

void pack(const Message& message, PackedBytes& to) {
  const auto& [role, content, thoughts, calls, is_trained, name, call_id, pictures] = message;
  if (!pictures.empty()) throw std::logic_error("pictures of a packed conversation");
  to.add(static_cast<int32_t>(role));
  for (const std::string* text : {&content, &thoughts, &name, &call_id}) to.add_text(*text);
  to.add(is_trained);
  to.add(std::ssize(calls));
  for (const auto& [function, arguments, id] : calls) {
    for (const std::string* text : {&function, &arguments, &id}) to.add_text(*text);
  }
}

Message unpack_message(UnpackedBytes& from) {
  Message message{.role = static_cast<Role>(from.next<int32_t>()), .content = {}};
  for (std::string* text : {&message.content, &message.thoughts, &message.name, &message.call_id}) {
    *text = from.next_text();
  }
  message.is_trained = from.next<bool>();
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    FunctionCall& call = message.calls.emplace_back();
    for (std::string* text : {&call.name, &call.arguments, &call.id}) *text = from.next_text();
  }
  return message;
}

}  // namespace

void pack(const Conversation& row, PackedBytes& to) {
  const auto& [messages, source, rejected, desirable, tools, documents, dataset] = row;
  to.add(std::ssize(messages));
  for (const Message& message : messages) pack(message, to);
  to.add_text(source);
  to.add(rejected.has_value());
  if (rejected) pack(*rejected, to);
  to.add(desirable);
  to.add_text(tools);
  to.add_text(documents);
  to.add(dataset);
}

Conversation unpack_conversation(std::string_view bytes) {
  UnpackedBytes from(bytes);
  Conversation row;
  for (int64_t left = from.next<int64_t>(); left > 0; --left) {
    row.messages.push_back(unpack_message(from));
  }
  row.source = from.next_text();
  if (from.next<bool>()) row.rejected = unpack_message(from);
  row.desirable = from.next<bool>();
  row.tools = from.next_text();
  row.documents = from.next_text();
  row.dataset = from.next<int32_t>();
  return row;
}

}  // namespace longspan
