// Warns of tokens that join two messages when a chat is tokenized as one text. No torch.
#pragma once

#include <string>
#include <vector>

#include "longspan/data/conversation.h"
#include "longspan/text/local_time.h"
#include "longspan/text/saved_chat.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;
struct Stage;

/// Training by a named template tokenizes each message separately. Other programs tokenize the
/// whole text that the saved chat template renders. A token of the whole text may join the end of
/// one message with the beginning of the next message. Returns a sentence with the number of chats,
/// among the first 100 rows, whose prompts other programs tokenize differently. Returns "" if there
/// are no such chats, if the model's own chat template is saved, and for stage pt. Checks only both
/// ends of long messages.
std::string hint_at_joined_messages(const DataSettings& config, const Stage& stage,
                                    const SavedChat& chat, const Tokenizer& tokenizer,
                                    const std::vector<Conversation>& rows,
                                    const LocalTime& template_time);

}  // namespace longspan
