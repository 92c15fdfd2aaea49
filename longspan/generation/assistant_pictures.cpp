#include "longspan/generation/assistant_pictures.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/models/composite.h"

namespace longspan {

void take_pictures(Assistant& assistant, const AssistantRequest& request) {
  if (!takes_pictures(assistant.config)) {
    assistant.no_pictures =
        fmt::format("the model ({}) takes none. Take them out, or choose a model that takes some.",
                    assistant.config.architecture);
    return;
  }
  if (!assistant.chat) {
    assistant.no_pictures =
        "the model has no chat template that places them. Name one by the key template.";
    return;
  }
  try {
    const ModelConfig config = with_pictures(assistant.config);
    std::optional<PictureEncoding> encoding =
        picture_encoding_of(assistant.model_folder, assistant.tokenizer, request.pictures);
    const VideoForm videos =
        encoding ? video_form(request.template_name, *encoding) : VideoForm::kNone;
    if (videos == VideoForm::kNone) {
      assistant.no_pictures =
          fmt::format("template={} takes none. Leave it out to use the model's own chat template.",
                      request.template_name);
      return;
    }
    assistant.config = config;
    assistant.pictures = std::make_unique<PromptEncoding>(
        *std::move(encoding), videos, /*writes_tags=*/!request.template_name.empty());
  } catch (const UserError& error) {
    assistant.no_pictures = error.what();
  }
}

}  // namespace longspan
