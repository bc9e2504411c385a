"""Tokens to text, one after the other, with never a character in halves."""

from __future__ import annotations

from codecs import utf_8_decode

from headrace.engine.token_pieces import Piece, TokenPieces


class TextStream:
    """All that `push` and the final `flush` return, joined, is what decoding all tokens at once gives.

    The work a token costs does not grow with the text. Bytes that may still become a character are kept back, and so is a
    whole run of SentencePiece byte tokens, since one bad byte spoils its run.
    """

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._known = pieces.known
        self._utf8 = pieces.rules.kind == "utf8"
        self._bytes = b""
        self._begun = False
        self._strip, self._to_strip = pieces.rules.strip

    def push(self, token: int) -> str:
        """The text that is certain once `token` is known; often empty."""
        if not self._begun:
            return self._first(token)
        piece = self._known[token] if token in self._known else self._pieces.piece(token)
        if type(piece) is str and not self._bytes and not self._to_strip:
            return piece
        return self._stripped(self._add(piece))

    def flush(self) -> str:
        """What was kept back, as the end of the text: bytes that are no character become U+FFFD."""
        return self._stripped(self._take_bytes())

    def _first(self, token: int) -> str:
        piece = self._pieces.first_piece(token)
        self._begun = piece is not None
        return self._stripped(self._add(piece))

    def _add(self, piece: Piece) -> str:
        if not piece:
            return ""
        if isinstance(piece, str):
            return self._take_bytes() + piece
        self._bytes += piece
        if not self._utf8:
            return ""
        text, used = utf_8_decode(self._bytes, "replace", False)
        self._bytes = self._bytes[used:]
        return text

    def _take_bytes(self) -> str:
        raw, self._bytes = self._bytes, b""
        if self._utf8:
            return raw.decode("utf-8", "replace")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(raw)

    def _stripped(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != self._strip:
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        return text
