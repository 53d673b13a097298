"""The model: where its weights are, how it chats, generates and is scored."""
